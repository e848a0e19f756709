#include "worker/executor/copy_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace starling {

absl::StatusOr<std::unique_ptr<CopyQueue>> CopyQueue::Create(Device* device, SpanRing* spans) {
  std::unique_ptr<CopyQueue> queue(new CopyQueue(device, spans));
  STARLING_ASSIGN_OR_RETURN(queue->stream_, device->CreateStream());
  STARLING_ASSIGN_OR_RETURN(queue->copied_, device->CreateEvent());
  queue->thread_ = std::thread([queue = queue.get()] { queue->Run(); });
  return queue;
}

CopyQueue::~CopyQueue() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status CopyQueue::Out(const Block& block, Stream& lane, const Sum& sum) {
  Copy copy;
  copy.name = "copy out";
  copy.sum = sum;
  STARLING_ASSIGN_OR_RETURN(copy.may_begin, TakeEvent());
  STARLING_RETURN_IF_ERROR(lane.Record(*copy.may_begin));
  STARLING_RETURN_IF_ERROR(stream_->Wait(*copy.may_begin));
  STARLING_RETURN_IF_ERROR(device_->CopyFromDevice(block.to, block.from, block.bytes, *stream_));
  return Finish(copy);
}

absl::Status CopyQueue::In(absl::Span<const Block> blocks, Event* free, Event& arrived,
                           const char* name, SliceId slice) {
  if (free != nullptr) STARLING_RETURN_IF_ERROR(stream_->Wait(*free));
  for (const Block& block : blocks) {
    STARLING_RETURN_IF_ERROR(device_->CopyToDevice(block.to, block.from, block.bytes, *stream_));
  }
  STARLING_RETURN_IF_ERROR(stream_->Record(arrived));
  Copy copy;
  copy.name = name;
  copy.sum.slice = slice;
  return Finish(copy);
}

absl::Status CopyQueue::MakeStreamWait(Stream& lane) {
  STARLING_RETURN_IF_ERROR(stream_->Record(*copied_));
  return lane.Wait(*copied_);
}

absl::Status CopyQueue::Finish(Copy copy) {
  STARLING_ASSIGN_OR_RETURN(copy.passed, TakeEvent());
  STARLING_RETURN_IF_ERROR(stream_->Record(*copy.passed));
  copy.ordered_us = SpanRing::NowMicros();
  MutexLock lock(&mutex_);
  ordered_.push_back(copy);
  changed_.SignalAll();
  return failure_;
}

// An event that is not returned because of an error is simply replaced.
absl::StatusOr<Event*> CopyQueue::TakeEvent() {
  MutexLock lock(&mutex_);
  if (free_.empty()) {
    STARLING_ASSIGN_OR_RETURN(events_.emplace_back(), device_->CreateEvent());
    return events_.back().get();
  }
  Event* const event = free_.back();
  free_.pop_back();
  return event;
}

absl::Status CopyQueue::Drain() {
  const absl::Status status = stream_->Synchronize();
  MutexLock lock(&mutex_);
  while (busy_ || !ordered_.empty()) changed_.Wait(&mutex_);
  failure_.Update(status);
  return std::exchange(failure_, absl::OkStatus());
}

void CopyQueue::Run() {
  std::vector<Copy> batch;
  for (;;) {
    absl::Status failure;
    {
      MutexLock lock(&mutex_);
      busy_ = false;
      changed_.SignalAll();
      while (!stop_ && ordered_.empty()) changed_.Wait(&mutex_);
      if (ordered_.empty()) return;
      busy_ = true;
      std::swap(batch, ordered_);
      failure = failure_;
    }
    for (const Copy& copy : batch) {
      failure.Update(See(copy));
      if (failure.ok() && copy.sum.sink != nullptr) {
        copy.sum.sink->Ready(copy.sum.range, copy.sum.slice, copy.sum.samples);
      }
      MutexLock lock(&mutex_);
      failure_.Update(failure);
      if (copy.may_begin != nullptr) free_.push_back(copy.may_begin);
      free_.push_back(copy.passed);
    }
    batch.clear();
  }
}

// The span as the host sees it: from when the copy could start to when it completed.
absl::Status CopyQueue::See(const Copy& copy) {
  uint64_t begin_us = std::max(copy.ordered_us, last_us_);
  if (copy.may_begin != nullptr) {
    STARLING_RETURN_IF_ERROR(copy.may_begin->Synchronize());
    begin_us = std::max(begin_us, SpanRing::NowMicros());
  }
  STARLING_RETURN_IF_ERROR(copy.passed->Synchronize());
  last_us_ = SpanRing::NowMicros();
  spans_->Record(copy.name, SpanCategory::kCopy, begin_us, last_us_,
                 {.clock = clock_, .slice = copy.sum.slice.value});
  return absl::OkStatus();
}

}  // namespace starling
