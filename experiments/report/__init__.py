"""Every run leaves a page that shows what happened in it: `report.html`, one file by itself."""
