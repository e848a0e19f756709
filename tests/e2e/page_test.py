"""A real browser shows the status page beside a training job.

Skips itself without Chromium (tools/setup.sh --pictures).
"""

import sys
import unittest

from tests.e2e import browser
from tests.e2e.admin_test import endless
from tests.e2e.cluster import Cluster

# A name cannot contain markup (CheckName); a reason can.
VIEWS = {
    "desk": {"width": 1200, "height": 900},
    "dark": {"width": 1200, "height": 900, "dark": True},
    "phone": {"width": 390, "height": 844, "phone": True},
}


@unittest.skipUnless(browser.PROGRAM, "no Chromium: run tools/setup.sh --pictures")
class Page(unittest.TestCase):
    def test_the_page_beside_a_training_job(self):
        cluster_of_it = Cluster(shards=2, workers=2, checkpoints=True)
        with cluster_of_it as cluster, browser.Browser() as chromium:
            cluster.submit(endless("seen", cluster.directory))
            cluster.wait_progress("seen", epoch=2)
            address = f"http://127.0.0.1:{cluster.admin_port('coordinator')}/"
            backgrounds = {}
            for view, options in VIEWS.items():
                with self.subTest(view):
                    page = chromium.open(address, **options)
                    page.wait_for("document.querySelectorAll('#charts polyline').length >= 3")
                    self.check_content(page)
                    self.check_refreshes(page)
                    self.assertEqual(page.complaints, [])
                    self.assertEqual([r for r in page.requests if not r.startswith(address)], [])
                    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    self.assertLessEqual(wide, 0, "the page is wider than the screen")
                    backgrounds[view] = page.evaluate(
                        "getComputedStyle(document.body).backgroundColor"
                    )
            self.assertNotEqual(backgrounds["desk"], backgrounds["dark"])
            self.check_loss_of_the_coordinator(cluster, page)
            print(
                f"figure: {len(VIEWS)} views (desk, dark, phone), 0 console errors, all figures "
                "refreshed"
            )

    def check_content(self, page):
        text = page.evaluate("document.body.innerText")
        for expected in (
            "seen",
            "RUNNING",
            "worker-0",
            "worker-1",
            "shard-0",
            "shard-1",
            "ssp(2)",
            "of 2 allowed",
            "test accuracy",
            "samples/s",
            "Curves of seen",
        ):
            self.assertIn(expected, text)
        unnamed = page.evaluate(
            """[...document.querySelectorAll('progress, meter, svg, button, table')].filter(
            (e) => !(e.getAttribute('aria-label') || e.textContent.trim())).length"""
        )
        self.assertEqual(unnamed, 0, "something has no name for who cannot see it")

    def check_refreshes(self, page):
        step = "document.querySelector('#jobs progress').value"
        before = page.evaluate(step)
        page.wait_for(f"{step} > {before}")

    def check_loss_of_the_coordinator(self, cluster, page):
        cluster.kill("coordinator")
        page.wait_for("document.querySelector('#trouble').textContent.startsWith('no news')")
        self.assertIn("worker-0", page.evaluate("document.body.innerText"), "what was known stays")
        port = cluster.admin_port("coordinator")
        cluster.flags_of["coordinator"] = ["--admin-address", f"127.0.0.1:{port}"]
        cluster.start_coordinator()
        page.wait_for("document.querySelector('#trouble').textContent === ''")


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
