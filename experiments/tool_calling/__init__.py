"""Tool calling on the records of xLAM or of the embedded generator: `+task=xlam`."""
