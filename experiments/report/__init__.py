"""Report page of a run: `report.html`, one self-contained file."""
