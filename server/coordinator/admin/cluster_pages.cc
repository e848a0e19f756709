#include "server/coordinator/admin/cluster_pages.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/coordinator/admin/board.h"
#include "server/coordinator/admin/cluster_metrics.h"
#include "server/coordinator/admin/page_nonce.h"
#include "server/coordinator/admin/status_json.h"
#include "server/coordinator/admin/status_page.h"

namespace starling::coordinator {
namespace {

using admin::HttpRequest;
using admin::HttpResponse;

// The page polls every two seconds, scrapers less often.
constexpr absl::Duration kMaxAge = absl::Milliseconds(500);
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr size_t kCurvesKept = 8;  // for the most recently requested jobs

HttpResponse JsonResponse(std::string body) {
  HttpResponse response;
  response.content_type = "application/json";
  response.body = std::move(body);
  return response;
}

HttpResponse ErrorResponse(int status, absl::string_view why) {
  HttpResponse response;
  response.status = status;
  response.body = absl::StrCat(why, "\n");
  return response;
}

constexpr char kSilent[] =
    "the coordinator's thread does not answer: nothing is known of jobs, workers and shards";

HttpResponse Silent() { return ErrorResponse(503, kSilent); }

void AskForCluster(CoordinatorHost* host, Board<ClusterView>::Answer answer) {
  host->Call([](CallId call) { return event::Overview{call}; },
             [answer = std::move(answer)](CallReply reply) {
               ClusterView* const view = std::get_if<ClusterView>(&reply);
               answer(view == nullptr ? nullptr : std::make_shared<ClusterView>(std::move(*view)));
             });
}

void AskForCurves(CoordinatorHost* host, const std::string& job,
                  Board<CurvesReply>::Answer answer) {
  CurvesRequest request;
  request.set_name(job);
  host->Call(
      [request](CallId call) {
        return event::Curves{call, request, /*brief=*/true};
      },
      [answer = std::move(answer)](CallReply reply) {
        CurvesReply* const curves = std::get_if<CurvesReply>(&reply);
        answer(curves == nullptr ? nullptr : std::make_shared<CurvesReply>(std::move(*curves)));
      });
}

// Caches what `render` makes of an answer until the answer changes. T is the rendered type.
template <typename Answer, typename T>
class Rendered {
 public:
  template <typename Render>
  const T& Of(const std::shared_ptr<const Answer>& answer, Render render) {
    if (answer != answer_) made_ = render(*answer);
    answer_ = answer;
    return made_;
  }

 private:
  std::shared_ptr<const Answer> answer_;
  T made_;
};

// Used on the admin port's thread only.
class ClusterPages {
 public:
  explicit ClusterPages(CoordinatorHost* host)
      : cluster_(
            [host](Board<ClusterView>::Answer answer) { AskForCluster(host, std::move(answer)); },
            kMaxAge, kPatience),
        curves_(kCurvesKept, [host](const std::string& job) {
          const auto ask = [host, job](Board<CurvesReply>::Answer answer) {
            AskForCurves(host, job, std::move(answer));
          };
          return Board<CurvesReply>(ask, kMaxAge, kPatience);
        }) {}

  void AddMetrics(admin::MetricsText& metrics) {
    const auto view = cluster_.Get();
    if (view == nullptr) return metrics.Miss(kSilent);
    metrics.Add(metrics_.Of(view, [](const ClusterView& of) {
      admin::MetricsText text;
      AddClusterMetrics(of, text);
      return text;
    }));
  }

  HttpResponse Status() {
    const auto view = cluster_.Get();
    return view == nullptr ? Silent() : JsonResponse(status_.Of(view, StatusJson));
  }

  HttpResponse Curves(const std::string& job) {
    const auto view = cluster_.Get();
    if (view == nullptr) return Silent();
    curves_.EraseIf([&](const std::string& name) { return !HasJob(*view, name); });
    if (!HasJob(*view, job))
      return ErrorResponse(404, "there is no such job; give one as ?job=NAME");
    const auto curves = curves_.Get(job);
    return curves == nullptr ? Silent() : JsonResponse(CurvesJson(*curves));
  }

 private:
  static bool HasJob(const ClusterView& view, const std::string& name) {
    for (const JobStatus& job : view.jobs.jobs()) {
      if (job.name() == name) return true;
    }
    return false;
  }

  Board<ClusterView> cluster_;
  Rendered<ClusterView, std::string> status_;
  Rendered<ClusterView, admin::MetricsText> metrics_;
  Boards<CurvesReply> curves_;  // of existing jobs only
};

HttpResponse StatusPage() {
  const std::string nonce = PageNonce();
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = absl::StrReplaceAll(kStatusPage, {{"PAGE_NONCE", nonce}});
  response.content_security_policy =
      absl::StrCat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                   "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'");
  return response;
}

}  // namespace

void ShowCluster(CoordinatorHost* host, admin::Admin* admin) {
  const auto pages = std::make_shared<ClusterPages>(host);
  host->WatchWith(&admin->health());
  admin->AddMetricsOf([pages, host](admin::MetricsText& metrics) {
    pages->AddMetrics(metrics);
    host->worker_traffic().AddMetrics("worker", metrics);
    host->shard_traffic().AddMetrics("shard", metrics);
  });
  admin->SetPage("/", [](const HttpRequest&) { return StatusPage(); });
  admin->SetPage("/status.json", [pages](const HttpRequest&) { return pages->Status(); });
  admin->SetPage("/curves.json", [pages](const HttpRequest& request) {
    return pages->Curves(admin::QueryValue(request.query, "job"));
  });
  admin->SetReadiness([] { return std::string(); });
}

}  // namespace starling::coordinator
