"""Backbones as users bring them, small enough to learn three tasks in seconds; each function makes one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

WIDTH = 8
FEATURES = 32


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, FEATURES), nn.ReLU())


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(192, FEATURES)
        self.a = nn.Linear(FEATURES, FEATURES)
        self.b = nn.Linear(FEATURES, FEATURES)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(torch.relu(self.first(x.flatten(1)))))))


def double() -> nn.Module:
    return mlp().double()


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)  # type: ignore[no-any-return]


def resnet18() -> nn.Module:
    """Its 18 layers with WIDTH channels in place of 64, and the stem for small images."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True)]
    channels = WIDTH
    for width, stride in ((WIDTH, 1), (2 * WIDTH, 2), (4 * WIDTH, 2), (4 * WIDTH, 2)):
        layers += [Block(channels, width, stride), Block(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def channels_last() -> nn.Module:
    return resnet18().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class Inverted(nn.Module):
    """MobileNetV2's block: wide and depthwise between two narrow ends."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inputs
        self.adds = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.adds else y


def mobilenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU6()),
        *(Inverted(WIDTH, 16, 2), Inverted(16, 16, 1)),
        *(nn.Conv2d(16, FEATURES, 3, 1, 1, groups=4, bias=False), nn.BatchNorm2d(FEATURES), nn.ReLU6()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, LayerNorm over channels, two Linear layers and a scale per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        features: Tensor = x + y.permute(0, 3, 1, 2)
        return features


class Mean(nn.Module):
    """The mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def convnext() -> nn.Module:
    blocks = (ConvNeXtBlock(FEATURES), ConvNeXtBlock(FEATURES))
    return nn.Sequential(nn.Conv2d(3, FEATURES, 2, 2), *blocks, Mean(), nn.LayerNorm(FEATURES))


class ViT(nn.Module):
    """Patches, a class token, two layers of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, FEATURES, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, FEATURES))
        self.place = nn.Parameter(0.02 * torch.randn(1, 5, FEATURES))
        layer = nn.TransformerEncoderLayer(FEATURES, 4, 64, 0.1, F.gelu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        features: Tensor = self.norm(self.encoder(x))[:, 0]
        return features


def _conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Two levels, joined by concatenation; one goes up by ConvTranspose2d and one by Upsample."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = _conv(3, WIDTH), _conv(WIDTH, 16), _conv(16, 16)
        self.up = nn.ConvTranspose2d(16, WIDTH, 2, 2)
        self.join1 = _conv(16 + WIDTH, 16)
        self.larger = nn.Upsample(scale_factor=2)
        self.join2 = _conv(16 + WIDTH, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.join1(torch.cat([self.up(self.middle(F.max_pool2d(b, 2))), b], 1))
        y = self.join2(torch.cat([self.larger(y), a], 1))
        return y.mean((2, 3))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """A small BERT of Hugging Face with random weights; reads token ids."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel  # noqa: PLC0415 - optional

        config = BertConfig(
            vocab_size=50, hidden_size=FEATURES, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
        config.max_position_embeddings = 16
        self.bert = BertModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        features: Tensor = self.bert(input_ids=ids).pooler_output
        return features


class Recurrent(nn.Module):
    """An LSTM, whose weights belong to task 1, and a Linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, FEATURES, batch_first=True)
        self.out = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return torch.relu(self.out(y[:, -1]))


def pretrained() -> nn.Module:
    """A convolutional network that has learnt to tell four other classes of images."""
    from tests.backbones.cases import examples  # noqa: PLC0415 - it has this function in its table

    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(5)
        layers = (_conv(3, 16), nn.MaxPool2d(2), _conv(16, FEATURES), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        network = nn.Sequential(*layers)
        inputs, labels = examples("pretrained", 99)
        whole = nn.Sequential(network, nn.Linear(FEATURES, 4))
        optimizer = torch.optim.Adam(whole.parameters(), 3e-3)
        for _ in range(12):
            optimizer.zero_grad()
            F.cross_entropy(whole(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return network
