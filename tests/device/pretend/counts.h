// Counts of kernels, synchronisations and copies, by name.
#pragma once
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "memory.h"

namespace {

std::mutex lock;
std::map<std::string, int64_t> counts;

void note(const std::string& name) {
  std::lock_guard<std::mutex> g(lock);
  counts[name]++;
}

std::string report() {
  std::lock_guard<std::mutex> g(lock);
  std::ostringstream s;
  for (auto& [k, v] : counts) s << k << "\t" << v << "\n";
  return s.str();
}

void reset() {
  std::lock_guard<std::mutex> g(lock);
  counts.clear();
  peak = used.load();
  refused = 0;
}

} // namespace
