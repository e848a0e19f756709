// Non-finite gradients, clients that push, workers that impersonate others, hand-made
// specifications.
#include "tests/integration/hand_cluster.h"

namespace starling {
namespace {

// A NaN in the last slice's gradient of step 1: the slices before it have sealed the step, and the
// job ends, since the only worker finds it again. A reader gets the values of step 1's start, for
// all slices.
TEST_F(ClusterTest, ABspJobThatEndsInAStepIsReadAsItWasBefore) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::BSP));
  worker_->Enter();
  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
  const std::vector<float> before = worker_->PullAll(1);
  const size_t last = worker_->layout().slices.size() - 1;
  ASSERT_GT(last, 0u);
  const std::vector<Answer> answers =
      worker_->PushAll(1, [&](size_t slice) { return slice == last ? std::nanf("") : 1.0f; });
  EXPECT_EQ(answers.front(), Answer::kCounted);
  EXPECT_EQ(answers.back(), Answer::kNonFinite);
  Fault fault;
  fault.set_kind(Fault::NON_FINITE);
  *fault.mutable_run() = worker_->orders().job().run();
  fault.mutable_work()->set_purpose(TRAIN);
  fault.mutable_work()->set_first(kMicroBatches);
  const absl::Time deadline = absl::Now() + kLong;
  while (Status("job").state() == RUNNING && absl::Now() < deadline) worker_->Report(fault);
  JobStatus status = Status("job");
  while (status.sealed_steps() != 1 && absl::Now() < deadline) status = Status("job");
  EXPECT_EQ(status.state(), FAILED);
  EXPECT_EQ(status.sealed_steps(), 1u);

  HandWorker reader(server_->address(), {PeerRole::kClient, "reader"});
  reader.ReadAs(*worker_);
  EXPECT_EQ(reader.PullAll(1, frame_flags::kReader | frame_flags::kVersion), before);
}

// No frame of a client can change a job's parameters.
TEST_F(ClusterTest, AClientMayOnlyRead) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP));
  worker_->Enter();
  const std::vector<float> before = worker_->PullAll(0);
  const auto reader = [&] {
    auto client =
        std::make_unique<HandWorker>(server_->address(), Identity{PeerRole::kClient, "reader"});
    client->ReadAs(*worker_);
    return client;
  };
  const Slice& slice = worker_->layout().slices[0];
  OutgoingPayload payload;
  // On behalf of a member.
  const FrameHeader push =
      worker_->PushHeader(slice, 0, 0, std::vector<float>(slice.elements, 1.0f), &payload);
  EXPECT_EQ(reader()->SendToTheEnd(push, payload).code(), absl::StatusCode::kPermissionDenied);
  FrameHeader close = worker_->Header(FrameType::kClose, slice.partition, 0);
  close.flags = frame_flags::kPark;
  EXPECT_EQ(reader()->SendToTheEnd(close).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(reader()->PullAll(0, frame_flags::kReader), before);
}

class LateFrames : public ClusterTest {
 protected:
  ShardInjections Injections() override { return {.queue_wait = absl::Seconds(3)}; }
};

// The frame is queued for its owner thread when the job is deleted: its sender is answered at once.
TEST_F(LateFrames, AFrameBehindADroppedPartitionIsAnswered) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP));
  const Slice& slice = worker_->layout().slices[0];
  const absl::Time deadline = absl::Now() + kLong;
  while (worker_->Pull(slice, 0, frame_flags::kReader).header.type != FrameType::kValue) {
    ASSERT_LT(absl::Now(), deadline);
  }
  FrameHeader pull = worker_->Header(FrameType::kPull, slice.partition, 0);
  pull.key.slice = slice.id;
  pull.flags = frame_flags::kReader;
  ASSERT_TRUE(worker_->Send(pull, {}, 0).ok());
  ASSERT_TRUE(Delete("job").ok());
  const Mailbox::Letter answer = worker_->Await(pull.request_id);
  EXPECT_EQ(answer.header.answer, Answer::kNotHosted);
  EXPECT_NE(answer.text.find("is not hosted here"), std::string::npos) << answer.text;
}

// A worker that uses another's name in a frame is refused; the other continues.
TEST_F(ClusterTest, NoWorkerSpeaksForAnother) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP));
  worker_->Enter();
  HandWorker other(server_->address(), {PeerRole::kWorker, "w-1"});
  other.ReadAs(*worker_);
  FrameHeader park = worker_->Header(FrameType::kClose, worker_->layout().slices[0].partition, 0);
  park.flags = frame_flags::kPark;
  const Mailbox::Letter refused = other.Ask(park);
  EXPECT_EQ(refused.header.answer, Answer::kBadFrame);
  EXPECT_NE(refused.text.find("w-1 is not worker"), std::string::npos) << refused.text;
  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
}

// Hand-made job specifications that bypass the client: the daemons refuse or run them, and survive.
TEST_F(ClusterTest, NoSpecificationEndsADaemon) {
  worker_->Register();
  const auto submit = [&](const JobSpec& spec) {
    std::future<absl::Status> reply = std::async(std::launch::async, [&] { return Submit(spec); });
    while (reply.wait_for(std::chrono::seconds(0)) != std::future_status::ready) worker_->Report();
    return reply.get();
  };
  const auto layers = [](const std::string& op,
                         const std::vector<std::pair<std::string, int64_t>>& attributes) {
    return [=](JobSpec& spec) {
      spec.mutable_model_source()->Clear();
      ModelSource::Layer& layer = *spec.mutable_model_source()->add_layers();
      layer.set_op(op);
      for (const auto& [name, value] : attributes) (*layer.mutable_attributes())[name].set_i(value);
    };
  };
  const auto graph = [](const std::function<void(Graph&)>& fill) {
    return [=](JobSpec& spec) {
      spec.clear_model_source();
      fill(*spec.mutable_model());
    };
  };
  const std::vector<std::function<void(JobSpec&)>> spoilers = {
      [](JobSpec& spec) { spec.Clear(); },
      [](JobSpec& spec) { spec.set_name(std::string("a\0b", 3)); },
      [](JobSpec& spec) { spec.set_name(std::string(1 << 20, 'a')); },
      [](JobSpec& spec) { spec.mutable_batch()->set_global(0); },
      [](JobSpec& spec) { spec.mutable_batch()->set_global(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_batch()->set_micro_batches(1u << 31); },
      [](JobSpec& spec) { spec.mutable_batch()->set_kernel_threads(UINT32_MAX); },
      [](JobSpec& spec) { spec.set_workers_max(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_stop()->set_epochs(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_stop()->set_epochs(0); },
      [](JobSpec& spec) { spec.mutable_stop()->set_wall_time_seconds(-INFINITY); },
      [](JobSpec& spec) { spec.mutable_evaluate()->set_every_epochs(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_policy()->set_kind(static_cast<Policy::Kind>(-1)); },
      [](JobSpec& spec) { spec.mutable_optimizer()->Clear(); },
      [](JobSpec& spec) {
        spec.mutable_optimizer()->mutable_learning_rate()->mutable_step()->set_every_steps(0);
      },
      [](JobSpec& spec) { spec.add_sample_shape(INT64_MIN); },
      [](JobSpec& spec) {
        for (int i = 0; i < 4; ++i) spec.add_sample_shape(INT64_MAX);
      },
      [](JobSpec& spec) { AddHidden(spec, INT64_MAX); },
      [](JobSpec& spec) {
        auto& arguments = *spec.mutable_model_source()->mutable_arguments();
        arguments["hidden"].mutable_ints()->set_values(0, -1);
      },
      [](JobSpec& spec) {
        for (int i = 0; i < 200'000; ++i) AddHidden(spec, 1);
      },
      [](JobSpec& spec) { spec.mutable_train()->mutable_counter()->set_samples(INT64_MIN); },
      layers("", {}),
      layers("conv2d", {{"out_channels", INT64_MAX}, {"kernel", INT64_MAX}}),
      layers("linear", {{"out_features", (int64_t{1} << 24) + 1}}),
      layers("gather_rows", {{"rows", 3}}),
      graph([](Graph& g) { g.add_nodes(); }),
      graph([](Graph& g) {
        g.mutable_input()->set_name("x");
        g.mutable_input()->add_shape(4);
        Node& node = *g.add_nodes();
        node.set_name("n");
        node.set_op("linear");
        node.add_inputs("n");  // its own input
        (*node.mutable_attributes())["out_features"].set_i(3);
      }),
      graph([](Graph& g) {
        for (int i = 0; i < 100'000; ++i) g.add_parameters()->add_shape(-1);
        g.add_nodes()->set_op("negative_sum");
      }),
  };
  for (size_t i = 0; i < spoilers.size(); ++i) {
    JobSpec spec = Spec("job", Policy::SSP);
    spoilers[i](spec);
    const absl::Status status = submit(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << "spoiler " << i << ": " << status;
  }
  // More steps than could ever run are not an error.
  JobSpec endless = Spec("endless", Policy::SSP);
  endless.mutable_stop()->set_steps(UINT64_MAX);
  const absl::Status status = submit(endless);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Status("endless").steps(), 2 * kSteps);
}

}  // namespace
}  // namespace starling
