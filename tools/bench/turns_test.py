import unittest

from tools.bench.turns import Turn, ratio, summarize, table

NONE, REPLICATED, TCP = "none", "replicated", "raw TCP"

# Bytes, seconds, CPU seconds.
ROUNDS = [
    {
        NONE: Turn(4_000_000_000, 2.0, 3.0),  # 2 GB/s, 0.75 s per GB
        REPLICATED: Turn(2_000_000_000, 2.0, 3.0),  # 1 GB/s, 1.5 s per GB
        TCP: Turn(8_000_000_000, 2.0, 3.0),  # 4 GB/s
    },
    {
        NONE: Turn(2_000_000_000, 1.0, 1.5),  # the same
        REPLICATED: Turn(3_200_000_000, 2.0, 3.6),  # 1.6 GB/s, 1.125 s per GB
        TCP: Turn(2_500_000_000, 1.0, 1.0),  # 2.5 GB/s
    },
    {
        NONE: Turn(1_000_000_000, 1.0, 1.0),  # 1 GB/s, 1 s per GB
        REPLICATED: Turn(600_000_000, 1.0, 1.5),  # 0.6 GB/s, 2.5 s per GB
        TCP: Turn(4_000_000_000, 1.0, 1.0),  # 4 GB/s
    },
]


class TurnsTest(unittest.TestCase):
    def check(self, found, median, least, greatest):
        for what, expected in (("median", median), ("min", least), ("max", greatest)):
            self.assertAlmostEqual(found[what], expected)

    def test_medians_are_of_all_rounds(self):
        summary = summarize(ROUNDS)
        self.assertEqual(summary["rounds"], 3)
        self.check(summary["rate"][NONE], 2, 1, 2)
        self.check(summary["rate"][REPLICATED], 1, 0.6, 1.6)
        self.check(summary["cost"][REPLICATED], 1.5, 1.125, 2.5)
        self.check(summary["cores"][REPLICATED], 1.5, 1.5, 1.8)

    def test_ratios_are_of_one_round(self):
        self.check(ratio(ROUNDS, "rate", REPLICATED, NONE), 0.6, 0.5, 0.8)
        self.check(ratio(ROUNDS, "cost", REPLICATED, NONE), 2, 1.5, 2.5)
        self.check(ratio(ROUNDS, "rate", NONE, TCP), 0.5, 0.25, 0.8)

    def test_the_table_has_each_contender(self):
        self.assertEqual(
            [" ".join(line.split()) for line in table(summarize(ROUNDS))],
            [
                "GB/s CPU s per GB processors busy",
                "none 2.000 (1.000 to 2.000) 0.750 (0.750 to 1.000) 1.500 (1.000 to 1.500)",
                "replicated 1.000 (0.600 to 1.600) 1.500 (1.125 to 2.500) 1.500 (1.500 to 1.800)",
                "raw TCP 4.000 (2.500 to 4.000) 0.375 (0.250 to 0.400) 1.000 (1.000 to 1.500)",
            ],
        )


if __name__ == "__main__":
    unittest.main()
