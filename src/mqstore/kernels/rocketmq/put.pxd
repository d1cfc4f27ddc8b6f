cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcpy
from mqstore.kernels.rocketmq.encode cimport put_record, ref
from mqstore.kernels.rocketmq.record_layout cimport (
    FIXED_SIZE, FRAME_SIZE, MAX_PROPERTIES, RecordValues, Span, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE,
)

cdef enum:
    LONGEST_BODY = 65536  # of the fast path: longer bodies let other threads run
    PUTS_PER_YIELD = 256

cdef extern from "time.h":
    """
    #include <time.h>
    static CYTHON_INLINE long long mq_now_ms(void) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        return (long long) t.tv_sec * 1000 + t.tv_nsec / 1000000;
    }
    """
    long long now_ms "mq_now_ms"() noexcept nogil

cdef extern from "unistd.h":
    int pause "usleep"(unsigned int microseconds) noexcept nogil

cdef inline int c_int(value) except? -1:
    return value

cdef inline long long c_long(value) except? -1:
    return value

cdef inline const unsigned char *octets(bytes b) noexcept:
    return <const unsigned char *> PyBytes_AS_STRING(b)

cdef inline unsigned char *buffer_start(unsigned char[::1] b) noexcept:
    return <unsigned char *> b._data

@cython.freelist(64)
cdef class Message:
    cdef public object topic, body, queue_id, flag, sys_flag, born_timestamp, born_host, store_host, reconsume_times, prepared_transaction_offset
    cdef object _given, _keys, _tags

@cython.freelist(64)
cdef class PutResult:
    cdef public object status, detail
    cdef public long long physical_offset, queue_offset, size, store_timestamp
    cdef object _host, _sizes

cdef class Topic:
    cdef public bytes raw
    cdef public int version
    cdef public bint batch
    cdef public str refused
    cdef public dict following

cdef class LogEnd:
    cdef public long long start, size, written, last_stored

cdef class PutPath:
    cdef object ok
    cdef bytes default_host
    cdef bint trailing_separator
    cdef long long max_body_size, max_record_size, limit
    cdef public dict topics, hosts
    cdef public int busy
    cdef public bint paused
    cdef public int yield_microseconds
    cdef int puts_since_yield
    cdef public long long not_after, last_stored
    cdef public LogEnd file
    cdef unsigned char[::1] data
    cpdef put(self, message)
    cdef put_message(self, Message m)

cdef class SinglePut:
    cdef public PutPath _path
    cdef public bint _sync_flush

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bytes PyBytes_FromStringAndSize(const char *source, Py_ssize_t size)

cdef inline char *add_pair(char *to, const char *name, const char *value, Py_ssize_t size) noexcept:
    """Write a property whose name has four letters. Returns the place after it."""
    memcpy(to, name, 4)
    to[4] = 1
    memcpy(to + 5, value, size)
    return to + 5 + size

cdef inline bytes join_properties(keys, tags, bint trailing_separator):
    """Return the property text of keys and tags, which are strings or None."""
    cdef const char *key = NULL
    cdef const char *tag = NULL
    cdef Py_ssize_t key_size = 0
    cdef Py_ssize_t tag_size = 0
    if keys is not None:
        key = PyUnicode_AsUTF8AndSize(keys, &key_size)
    if tags is not None:
        tag = PyUnicode_AsUTF8AndSize(tags, &tag_size)
    cdef bytes text = PyBytes_FromStringAndSize(
        NULL, (key != NULL) * (key_size + 5) + (tag != NULL) * (tag_size + 5) + (key != NULL and tag != NULL) + trailing_separator
    )
    cdef char *to = PyBytes_AS_STRING(text)
    if key != NULL:
        to = add_pair(to, "KEYS", key, key_size)
    if tag != NULL:
        if key != NULL:
            to[0] = 2
            to += 1
        to = add_pair(to, "TAGS", tag, tag_size)
    if trailing_separator:
        to[0] = 2
    return text

cdef bint needs_slow_path(bytes text)

cdef extern from *:
    """
    /* whether the text contains DELAY, TIMER_ or INNER_ */
    static CYTHON_INLINE int mq_contains_any(const unsigned char *b, Py_ssize_t n) {
        Py_ssize_t k;
        for (k = 0; k + 5 <= n; k++) {
            if (b[k] == 'D' ? !memcmp(b + k, "DELAY", 5) :
                (b[k] == 'T' || b[k] == 'I') && k + 6 <= n && (!memcmp(b + k, "TIMER_", 6) || !memcmp(b + k, "INNER_", 6)))
                return 1;
        }
        return 0;
    }
    """
    bint contains_any "mq_contains_any"(const unsigned char *b, Py_ssize_t n) noexcept nogil
