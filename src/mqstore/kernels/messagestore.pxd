from mqstore.kernels.loads cimport i64, u8
from mqstore.kernels.terms cimport shape_at, unsigned32
