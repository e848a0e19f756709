"""PyTorch's side of tools/bench.sh compute: the nets of compute_nets.h, on request line by line.

    torch_peer.py THREADS [DEVICE]

Runs in the environment of `tools/setup.sh --peers`, or in any with PyTorch. DEVICE is cpu, or cuda,
which has two more nets. Prints one line of JSON that describes it. Then it answers each line "NET
PRECISION MODE LAYOUT SECONDS" of standard input, where PRECISION is fp32 or bf16 (by autocast) and
MODE is eager or compiled, with {"units": samples trained, "seconds": ...}. A net's first request
builds it, compiles it and does a few steps. Ends at the end of the input.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
WARM_UP = 3  # steps; the first one compiles


class Lenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.dropout(F.max_pool2d(x, 2), 0.25, self.training)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(F.dropout(x, 0.5, self.training))


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Resnet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        )
        blocks, inputs = [], 64
        for outputs in (64, 128, 256, 512):
            blocks += [
                BasicBlock(inputs, outputs, 1 if outputs == 64 else 2),
                BasicBlock(outputs, outputs, 1),
            ]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x), inplace=True)


class Resnet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, inputs = [], 64
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for i in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if i == 0 and width > 64 else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (
            part.view(n, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(d, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, depth=6, width=384, heads=6, context=256, vocabulary=256):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        return F.linear(self.ln_f(self.blocks(x)), self.wte.weight)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, fused=True)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.0001, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


# Net, input, labels' shape, classes, optimizer.
NETS = {
    "lenet": (Lenet, lambda: torch.randn(128, 1, 28, 28), (128,), 10, sgd),
    "resnet18": (Resnet18, lambda: torch.randn(64, 3, 32, 32), (64,), 10, sgd),
    "gpt": (Gpt, lambda: torch.randint(256, (8, 256)), (8, 256), 256, adamw),
}
# Nets that would take a CPU minutes.
CUDA_NETS = {
    "resnet50": (Resnet50, lambda: torch.randn(256, 3, 224, 224), (256,), 1000, sgd),
    "gpt2": (
        lambda: Gpt(12, 768, 12, 1024, 50257),
        lambda: torch.randint(50257, (16, 1024)),
        (16, 1024),
        50257,
        adamw,
    ),
}


def trainer(name, precision, mode, layout, device):
    """Returns a function that does one step, or on cuda launches it, and returns its samples."""
    torch.manual_seed(1)
    nets = NETS | CUDA_NETS if device == "cuda" else NETS
    make, make_input, label_shape, classes, optimizer_of = nets[name]
    model, inputs = make(), make_input()
    if inputs.dim() == 4:
        model = model.to(memory_format=LAYOUTS[layout])
        inputs = inputs.contiguous(memory_format=LAYOUTS[layout])
    labels = torch.randint(classes, label_shape).flatten()
    optimizer = optimizer_of(model.parameters())

    def loss_of(x):
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return F.cross_entropy(model(x).flatten(0, -2), labels)

    compute = torch.compile(loss_of) if mode == "compiled" else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        compute(inputs).backward()
        optimizer.step()
        return label_shape[0]

    for _ in range(WARM_UP):
        step()
    return step


def finish(device):
    """Waits for the device to finish."""
    if device == "cuda":
        torch.cuda.synchronize()


def main():
    torch.set_num_threads(int(sys.argv[1]))
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    torch.set_default_device(device)
    torch.backends.cudnn.benchmark = True
    # fp32 means fp32 on both sides: no tensor cores.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    print(json.dumps({"version": torch.__version__}), flush=True)
    trainers = {}
    for line in sys.stdin:
        *key, seconds = line.split()
        key = tuple(key)
        if key not in trainers:
            trainers[key] = trainer(*key, device)
        finish(device)
        units, passed, begin = 0, 0.0, time.perf_counter()
        while passed < float(seconds):
            units += trainers[key]()
            passed = time.perf_counter() - begin
        finish(device)
        passed = time.perf_counter() - begin
        print(json.dumps({"units": units, "seconds": passed}), flush=True)


if __name__ == "__main__":
    main()
