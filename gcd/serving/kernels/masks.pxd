from gcd.serving.kernels.table cimport Table

cdef void write_row(Table table, int state, long long remaining, int* out) noexcept
