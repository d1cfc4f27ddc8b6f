from mqstore.kernels.common.loads cimport i32, i64
from mqstore.kernels.rocketmq.entry_layout cimport ENTRY_AT_SIZE, ENTRY_SIZE
