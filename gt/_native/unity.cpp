// One translation unit: torch's headers are parsed once instead of a dozen times, which is most of the build. Only site.cpp stands alone:
// it reads the interpreter's own headers.
#include "autocast.cpp"
#include "capture.cpp"
#include "composed.cpp"
#include "conjugate.cpp"
#include "device.cpp"
#include "functional.cpp"
#include "module.cpp"
#include "refused.cpp"
#include "signal.cpp"
#include "storage.cpp"
#include "stream.cpp"
