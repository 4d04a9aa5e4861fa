"""Lines of a play under three forms of guided decoding: `+task=shakespeare`."""
