"""Tool calling on the records of xLAM, or of others in its form: `+task=xlam`."""
