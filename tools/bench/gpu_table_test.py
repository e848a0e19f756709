import unittest

from tools.bench.gpu_table import table

OUTPUT = """\
starling 0.1.0, 16 cores, GPU: NVIDIA H100 80GB HBM3 (sm_90, CUDA 13.0)
== compute gpu
figure resnet50-bf16 ours=2900.0 tflops=71.3 torch=2790.5 ratio=1.039 \
least=1.031 greatest=1.042 version=2.9.0
figure gpt2-bf16 ours=400.1 tflops=300.0 torch=none ratio=none
compute gpu: passed: 2 figures
figure servers-resnet50-bf16 servers=2800.0 local=2890.0 ratio=0.969
bundle: CPU: 0 passed, 0 failed. GPU: 2 passed, 0 failed
"""

EXPECTED = """\
2026-11-22, NVIDIA H100 80GB HBM3 (sm_90, CUDA 13.0), PyTorch 2.9.0, commit abc:

| net | samples/s | TFLOP/s | PyTorch, `torch.compile` | ratio (least to greatest) |
|---|---|---|---|---|
| resnet50-bf16 | 2900.0 | 71.3 | 2790.5 | 1.039 (1.031 to 1.042) |
| gpt2-bf16 | 400.1 | 300.0 | none | none |

| with two shards at staleness 1 | samples/s | local update | ratio |
|---|---|---|---|
| resnet50-bf16 | 2800.0 | 2890.0 | 0.969 |
"""


class GpuTableTest(unittest.TestCase):
    def test_every_figure_has_a_row(self):
        self.assertEqual(table(OUTPUT, "abc", "2026-11-22"), EXPECTED)

    def test_without_figures_there_is_no_table(self):
        without = "\n".join(line for line in OUTPUT.splitlines() if not line.startswith("figure"))
        self.assertIsNone(table(without, "abc", "2026-11-22"))


if __name__ == "__main__":
    unittest.main()
