cdef class Masks:
    cdef readonly int final
    cdef readonly Py_ssize_t vocabulary_size
    cdef readonly Py_ssize_t num_words
    cdef readonly tuple arrays
    cdef const int[::1] class_of
    cdef const int[::1] steps
    cdef const int[::1] reach
    cdef const int[::1] pattern_of
    cdef const int[::1] target_start
    cdef const int[::1] targets
    cdef const int[::1] pattern_start
    cdef const int[::1] pattern_class
    cdef const int[::1] pattern_target
    cdef const long long[::1] class_size
    cdef const long long[::1] class_token
    cdef const int[::1] pair_start
    cdef const int[::1] pair_word
    cdef const int[::1] pair_bits
    cdef const int[::1] dense_of
    cdef const int[:, ::1] dense
    cdef int[:, ::1] cached
    cdef int[::1] owner
    cdef int[::1] slot_of
    cdef Py_ssize_t next_slot

    cdef int next_state(self, int state, long long remaining, long long token) noexcept
    cdef int target(self, int state, Py_ssize_t place) noexcept
    cdef long long num_allowed(self, int state, long long remaining) noexcept
    cdef long long only_token(self, int state, long long remaining) noexcept
    cdef void write_row(self, int state, long long remaining, int* out) noexcept
    cdef Py_ssize_t change(
        self, int state, long long remaining, Py_ssize_t base, Py_ssize_t most, bint write, int* row
    ) noexcept
    cdef void toggle(self, int token_class, int* row) noexcept
    cdef int* address(self, Py_ssize_t slot) noexcept
    cdef void copy(self, int* out, int* source) noexcept
    cdef void clear(self, int* out) noexcept
