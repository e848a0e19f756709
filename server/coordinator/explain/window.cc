#include "server/coordinator/explain/window.h"

#include <algorithm>

namespace starling::explain {
namespace {

// For one link. A reopened stream counts from 0.
LinkStatus Since(const LinkStatus& now, const LinkStatus& before) {
  const bool anew = now.sent_bytes() < before.sent_bytes() || now.pushes() < before.pushes() ||
                    now.received_bytes() < before.received_bytes() || now.pulls() < before.pulls();
  LinkStatus grown = now;
  if (anew) return grown;
  grown.set_sent_bytes(now.sent_bytes() - before.sent_bytes());
  grown.set_received_bytes(now.received_bytes() - before.received_bytes());
  grown.set_sending_seconds(std::max(0.0, now.sending_seconds() - before.sending_seconds()));
  grown.set_push_seconds(std::max(0.0, now.push_seconds() - before.push_seconds()));
  grown.set_pushes(now.pushes() - before.pushes());
  grown.set_pull_seconds(std::max(0.0, now.pull_seconds() - before.pull_seconds()));
  grown.set_pulls(now.pulls() - before.pulls());
  grown.set_receiving_seconds(std::max(0.0, now.receiving_seconds() - before.receiving_seconds()));
  return grown;
}

}  // namespace

WorkerCounters Since(const WorkerCounters& now, const WorkerCounters& before) {
  WorkerCounters grown;
  StepTimes& times = grown.times;
  times.set_units(now.times.units() - before.times.units());
  times.set_samples(now.times.samples() - before.times.samples());
  times.set_total(now.times.total() - before.times.total());
  times.set_data(now.times.data() - before.times.data());
  times.set_forward(now.times.forward() - before.times.forward());
  times.set_backward(now.times.backward() - before.times.backward());
  times.set_pull(now.times.pull() - before.times.pull());
  times.set_wait(now.times.wait() - before.times.wait());
  times.set_push(now.times.push() - before.times.push());
  times.set_idle(now.times.idle() - before.times.idle());
  for (const LinkStatus& link : now.links) {
    const auto same =
        std::find_if(before.links.begin(), before.links.end(),
                     [&](const LinkStatus& other) { return other.shard() == link.shard(); });
    grown.links.push_back(same == before.links.end() ? link : Since(link, *same));
  }
  return grown;
}

PartitionTimes Since(const PartitionTimes& now, const PartitionTimes& before) {
  PartitionTimes grown;
  grown.set_pushes(now.pushes() - before.pushes());
  grown.set_pulls(now.pulls() - before.pulls());
  grown.set_received_bytes(now.received_bytes() - before.received_bytes());
  grown.set_sent_bytes(now.sent_bytes() - before.sent_bytes());
  grown.set_queue(now.queue() - before.queue());
  grown.set_verify(now.verify() - before.verify());
  grown.set_apply(now.apply() - before.apply());
  grown.set_gate(now.gate() - before.gate());
  grown.set_applies(now.applies() - before.applies());
  return grown;
}

}  // namespace starling::explain
