#include "queues.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <utility>

namespace emulator {
namespace {

constexpr int64_t POOLED_STREAMS = 32;

std::atomic<uint64_t> delay_seed{0};
std::atomic<double> longest_delay_s{0.0};
std::atomic<int64_t> next_pooled{0};
thread_local int64_t this_threads_stream = DEFAULT_STREAM;

std::array<Queue*, POOLED_STREAMS + 1>& queues() {
  static auto* made = [] {
    auto* all = new std::array<Queue*, POOLED_STREAMS + 1>();
    for (size_t id = 0; id < all->size(); ++id) {
      (*all)[id] = new Queue(static_cast<int64_t>(id));
    }
    return all;
  }();
  return *made;
}

}  // namespace

Queue::Queue(int64_t id) : id_(id) {
  std::thread([this] { run(); }).detach();
}

void Queue::push(Job job) {
  std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back(std::move(job));
  ++pushed_;
  changed_.notify_all();
}

void Queue::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t last = pushed_;
  changed_.wait(lock, [&] { return ended_ >= last; });
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

bool Queue::is_idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_ == pushed_;
}

void Queue::run() {
  while (true) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !jobs_.empty(); });
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    delay();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    job = nullptr;  // what it holds ends before the job counts as ended
    std::lock_guard<std::mutex> lock(mutex_);
    ++ended_;
    if (error && !error_) {
      error_ = error;
    }
    changed_.notify_all();
  }
}

void Queue::delay() const {
  const double longest_s = longest_delay_s;
  if (longest_s <= 0.0) {
    return;
  }
  thread_local std::mt19937_64 random;
  thread_local uint64_t seeded_with = 0;
  if (seeded_with != delay_seed) {
    seeded_with = delay_seed;
    random.seed(seeded_with * (POOLED_STREAMS + 1) + static_cast<uint64_t>(id_));
  }
  // one job in four waits, so that streams run apart and not evenly slower
  if (random() % 4 == 0) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::uniform_real_distribution<double>(0.0, longest_s)(random)));
  }
}

Queue& queue(int64_t stream) {
  return *queues().at(static_cast<size_t>(stream));
}

int64_t pooled_stream() {
  return 1 + next_pooled++ % POOLED_STREAMS;
}

int64_t current_stream() {
  return this_threads_stream;
}

int64_t exchange_stream(int64_t stream) {
  return std::exchange(this_threads_stream, stream);
}

void synchronize_all() {
  for (Queue* each : queues()) {
    each->synchronize();
  }
}

void set_delays(uint64_t seed, double longest_s) {
  delay_seed = seed + 1;
  longest_delay_s = longest_s;
}

void Event::record(int64_t stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t recording = ++recorded_;
  lock.unlock();
  queue(stream).push([event = shared_from_this(), recording] {
    std::lock_guard<std::mutex> lock(event->mutex_);
    event->passed_ = std::max(event->passed_, recording);
    event->time_ = Clock::now();
    event->changed_.notify_all();
  });
}

void Event::block(int64_t stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t recording = recorded_;
  lock.unlock();
  queue(stream).push([event = shared_from_this(), recording] { event->wait_for(recording); });
}

void Event::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t recording = recorded_;
  lock.unlock();
  wait_for(recording);
}

void Event::wait_for(uint64_t recording) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return passed_ >= recording; });
}

bool Event::has_passed() {
  std::lock_guard<std::mutex> lock(mutex_);
  return passed_ == recorded_;
}

Clock::time_point Event::time() {
  std::lock_guard<std::mutex> lock(mutex_);
  return time_;
}

}  // namespace emulator
