from cpython.bytes cimport PyBytes_AS_STRING
from mqstore.kernels.rocketmq.encode cimport put_record, ref
from mqstore.kernels.rocketmq.record_layout cimport (
    FIXED_SIZE, FRAME_SIZE, MAX_PROPERTIES, RecordValues, Span, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE,
)

# the names of put.py, where they are described
cdef enum:
    LONGEST_BODY = 65536
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

cdef class Message:
    cdef public object topic, body, queue_id, flag, sys_flag, born_timestamp, born_host, store_host, reconsume_times, prepared_transaction_offset
    cdef object _given, _keys, _tags

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
    cdef bint is_v5
    cdef long long max_body_size, max_record_size, limit
    cdef public dict topics, hosts
    cdef public int busy
    cdef public bint paused
    cdef public int yield_microseconds
    cdef int puts_since_yield
    cdef public long long not_after, last_stored
    cdef public LogEnd file
    cdef unsigned char[::1] data
    cdef put_message(self, Message m)

cdef bytes join_properties(keys, tags, bint is_v5)
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
