#include "server/coordinator/explain/window.h"

#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace starling::explain {
namespace {

using google::protobuf::FieldDescriptor;

// For one link. A reopened stream counts from 0.
LinkStatus Since(const LinkStatus& now, const LinkStatus& before) {
  const bool anew = now.sent_bytes() < before.sent_bytes() || now.pushes() < before.pushes() ||
                    now.received_bytes() < before.received_bytes() || now.pulls() < before.pulls();
  LinkStatus grown = now;
  if (anew) return grown;
  grown.set_sent_bytes(now.sent_bytes() - before.sent_bytes());
  grown.set_received_bytes(now.received_bytes() - before.received_bytes());
  grown.set_shared_bytes(now.shared_bytes() - std::min(now.shared_bytes(), before.shared_bytes()));
  grown.set_sending_seconds(std::max(0.0, now.sending_seconds() - before.sending_seconds()));
  grown.set_push_seconds(std::max(0.0, now.push_seconds() - before.push_seconds()));
  grown.set_pushes(now.pushes() - before.pushes());
  grown.set_pull_seconds(std::max(0.0, now.pull_seconds() - before.pull_seconds()));
  grown.set_pulls(now.pulls() - before.pulls());
  grown.set_receiving_seconds(std::max(0.0, now.receiving_seconds() - before.receiving_seconds()));
  return grown;
}

// Of a message whose fields are all counters: uint64, or double (seconds).
template <typename Times>
Times Difference(const Times& now, const Times& before) {
  Times difference;
  const google::protobuf::Reflection& fields = *now.GetReflection();
  for (int i = 0; i < now.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = now.GetDescriptor()->field(i);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_DOUBLE:
        fields.SetDouble(&difference, field,
                         fields.GetDouble(now, field) - fields.GetDouble(before, field));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        fields.SetUInt64(&difference, field,
                         fields.GetUInt64(now, field) - fields.GetUInt64(before, field));
        break;
      default: STARLING_CHECK(false, std::string(field->full_name()).c_str());
    }
  }
  return difference;
}

}  // namespace

WorkerCounters Since(const WorkerCounters& now, const WorkerCounters& before) {
  WorkerCounters grown;
  grown.times = Difference(now.times, before.times);
  for (const LinkStatus& link : now.links) {
    const auto same =
        std::find_if(before.links.begin(), before.links.end(),
                     [&](const LinkStatus& other) { return other.shard() == link.shard(); });
    grown.links.push_back(same == before.links.end() ? link : Since(link, *same));
  }
  return grown;
}

PartitionTimes Since(const PartitionTimes& now, const PartitionTimes& before) {
  return Difference(now, before);
}

}  // namespace starling::explain
