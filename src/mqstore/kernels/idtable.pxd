from mqstore.kernels.loads cimport LOW32, cell, i64, word64
