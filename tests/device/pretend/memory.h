// Memory of the pretended devices: host memory, counted, that runs out at a limit.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdlib>

namespace {

c10::DeviceIndex device_count() {
  const char* n = std::getenv("PRETEND_GPUS");
  return n ? static_cast<c10::DeviceIndex>(std::atoi(n)) : 1;
}

thread_local c10::DeviceIndex current = 0;

std::atomic<int64_t> used{0}, peak{0}, limit{int64_t(1) << 37}, refused{0};

void take(int64_t n) {
  int64_t now = used.fetch_add(n) + n;
  if (now > limit.load()) {
    used.fetch_sub(n);
    refused++;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", n, " bytes (pretended)");
  }
  int64_t p = peak.load();
  while (now > p && !peak.compare_exchange_weak(p, now)) {
  }
}

struct Block {
  void* data;
  size_t n;
};

void free_block(void* ctx) {
  auto* b = static_cast<Block*>(ctx);
  used.fetch_sub(static_cast<int64_t>(b->n));
  std::free(b->data);
  delete b;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    c10::Device device(c10::kCUDA, current);
    if (n == 0) return {nullptr, nullptr, &free_block, device};
    take(static_cast<int64_t>(n));
    void* data = nullptr;
    if (posix_memalign(&data, 64, n)) TORCH_CHECK(false, "host memory ran out");
    return {data, new Block{data, n}, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::CUDA, &memory);

} // namespace
