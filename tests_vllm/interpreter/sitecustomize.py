"""Lets vLLM's V2 model runner run on a CPU: its Triton kernels are interpreted. For tests alone.

Put this module's folder on PYTHONPATH and set TRITON_INTERPRET=1 in all processes of vLLM. It asks
for a Triton backend named cpu, which is in builds of Triton that no index has. The interpreter
takes masks of integers, as vLLM's kernels make them, for indices, so they become truth values here.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import triton.backends as triton_backends
    from triton.backends.compiler import BaseBackend
    from triton.backends.driver import DriverBase
    from triton.runtime import interpreter

    class Driver(DriverBase):
        """A driver that is active and drives nothing, as nothing is compiled."""

        @staticmethod
        def is_active():
            return True

        def map_python_to_cpp_type(self, ty):
            return ty

        def get_current_target(self):
            return None

        def get_active_torch_device(self):
            import torch

            return torch.device("cpu")

        def get_benchmarker(self):
            return lambda call, quantiles: [0.0] * len(quantiles)

    triton_backends.backends.clear()
    triton_backends.backends["cpu"] = triton_backends.Backend(BaseBackend, Driver)

    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def truth(mask):
        return interpreter.TensorHandle(mask.data.astype(bool), mask.dtype)

    def masked_load(self, pointers, mask, *others):
        return load(self, pointers, truth(mask), *others)

    def masked_store(self, pointers, value, mask, *others):
        return store(self, pointers, value, truth(mask), *others)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
