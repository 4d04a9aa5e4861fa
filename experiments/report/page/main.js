// Everything is started once; then the page follows its address.

const asked = readAddress();
startExplorer();
for (const link of document.querySelectorAll("nav a")) {
  const section = byId(link.dataset.section);
  link.hidden = !section || section.hidden;
  link.addEventListener("click", (event) => {
    event.preventDefault();
    section.scrollIntoView();
  });
}
if (asked.example !== undefined && data.traces.length) byId("explorer").scrollIntoView();
window.addEventListener("hashchange", () => {
  unwritten = null; // the new address counts
  if (!data.traces.length) return;
  openAddress();
  byId("explorer").scrollIntoView();
});
