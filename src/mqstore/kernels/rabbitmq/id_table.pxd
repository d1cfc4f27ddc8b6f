from mqstore.kernels.common.loads cimport LOW32, cell, i64, word64
