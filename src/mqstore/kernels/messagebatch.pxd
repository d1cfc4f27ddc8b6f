from mqstore.kernels.frames cimport check
from mqstore.kernels.loads cimport UNIQ_KEY, copy, find, i32, i64, same, u8
