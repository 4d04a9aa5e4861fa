"""Tool calling (`+task=xlam`) on the records of xLAM or in its format."""
