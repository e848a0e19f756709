"""How cases.py reads rows and logs; and cases.txt itself can be read."""

import unittest

from tools.accept.mend import cases


class CasesTest(unittest.TestCase):
    def test_the_file_can_be_read(self):
        self.assertGreater(len(cases.read_rows(cases.CASES.read_text())), 50)

    def test_reads_rows(self):
        rows = cases.read_rows(
            "# a comment\n\nA1 | what | test //a/b:c_test S.T, //d:e_test -\n"
            "A2 | what | later: another issue builds it\nA3 | what | open\n"
        )
        self.assertEqual([row.kind for row in rows], ["test", "later", "open"])
        self.assertEqual(rows[0].tests, [("//a/b:c_test", "S.T"), ("//d:e_test", "-")])
        self.assertEqual(
            cases.summary(rows), "3 cases: 1 with tests, 1 of later issues, 0 not followed, 1 open"
        )

    def test_refuses_rows_without_evidence(self):
        for text in (
            "A | what",
            "A | what | ",
            "A | what | done",
            "A | what | test c_test S.T",
            "A | what | not followed: no",
            "A | a | open\nA | b | open",
        ):
            with self.assertRaises(ValueError, msg=text):
                cases.read_rows(text)

    def test_finds_a_case_in_a_log(self):
        log = (
            "test_a (tests.x.Some.test_a) ... ok\n"
            "test_b (__main__.Some)\nWhat it does. ... 12:00 a warning\nFAIL\n"
            "test_c (__main__.Some) ... skipped 'why'\n"
        )
        said = [cases.in_log(log, f"Some.test_{letter}") for letter in "abcd"]
        self.assertEqual(said, ["ok", "FAIL", "skipped", None])

    def test_what_did_not_run_passes_nothing(self):
        google = cases.Result(False, {"S.Good": "passed", "S.Bad": "failed", "S.No": "skipped"}, "")
        results = {"//a:t": google, "//a:script": cases.Result(True, {}, "")}
        said = lambda target, name: cases.verdict(cases.ROOT, results, cases.Test(target, name))
        self.assertEqual(said("//a:t", "S.Good"), cases.PASSED)
        self.assertEqual(said("//a:t", "S.Bad"), cases.FAILED)
        self.assertEqual(said("//a:t", "S.No"), cases.SKIPPED)
        self.assertEqual(said("//a:t", "S.None"), cases.NO_CASE)
        self.assertEqual(said("//a:none", "S.Good"), cases.NOT_BUILT)
        self.assertEqual(said("//a:script", "-"), cases.PASSED)

    def test_only_a_test_that_ran_and_failed_proves_a_row(self):
        passing, proved, text = cases.proof(
            {
                "A1": [cases.FAILED, cases.NOT_BUILT],
                "A2": [cases.NOT_BUILT, cases.NO_CASE, cases.SKIPPED],
                "A3": [cases.FAILED, cases.PASSED],
            }
        )
        self.assertEqual((passing, proved), (["A3"], ["A1"]))
        for words in (
            "1 rows are proved",
            "1 have a test that passes (A3)",
            "of 1 no test ran (A2)",
            "of 7 tests 2 ran and failed, 1 passed, 2 do not build",
            "1 are in no target there, 1 were skipped",
        ):
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
