// Which signal the running thread's operations belong to.
#pragma once
#include <cstdint>

namespace gt {
int64_t enterSignal(int64_t signal);  // returns the one before
int64_t currentSignal();
}  // namespace gt
