"""Files of runs, read with checks for damage and written atomically, as checkpoints of HMMs."""

from hmm._files import COPY_AGAIN, read_json, read_tensors, write_json, write_tensors

__all__ = ["COPY_AGAIN", "read_json", "read_tensors", "write_json", "write_tensors"]
