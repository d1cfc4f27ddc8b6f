from mqstore.kernels.common.loads cimport i64, u8
from mqstore.kernels.rabbitmq.terms cimport shape_at, unsigned32
