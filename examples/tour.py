# %% [markdown]
# # A tour of the run on the embedded digits
#
# One network learns three permutations of small handwritten digits, and this page looks at what came of it: the tasks,
# the accuracies, who owns which weight, and a task cut out of the network. It takes half a minute. As a script it
# writes its pictures into a folder (`python examples/tour.py [FOLDER]`); its cells run in VS Code and Spyder as they
# are, and `jupytext --to ipynb tour.py` makes a notebook of it.

# %%
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import lps
import numpy as np
import torch
from lps import report, train
from lps.data import stream
from PIL import Image

in_notebook = "ipykernel" in sys.modules
given = [] if in_notebook else sys.argv[1:]
folder = Path(given[0] if given else tempfile.mkdtemp(prefix="lps-tour-"))
folder.mkdir(parents=True, exist_ok=True)


def show(picture: Path) -> None:
    """In a notebook the picture, elsewhere its path."""
    if in_notebook:
        from IPython.display import SVG, display  # noqa: PLC0415 - it is there in a notebook
        from IPython.display import Image as Picture  # noqa: PLC0415

        display(SVG(str(picture)) if picture.suffix == ".svg" else Picture(str(picture)))
    else:
        print(f"picture: {picture}")


# %% [markdown]
# ## The tasks
#
# Task 1 shows the digits as they are. Every later task shows them with their 64 pixels in another order: as hard for a
# network that looks at all pixels alike, unreadable for us. Below: ten digits as each task sees them.

# %%
tasks = stream("permuted-digits", tasks=3)
rows = []
for task in tasks:
    inputs, labels = task.test.batch(torch.arange(len(task.test)))
    first = [int((labels == digit).nonzero()[0]) for digit in range(10)]
    rows.append(inputs[first].reshape(10, 8, 8).permute(1, 0, 2).reshape(8, 80))
pixels = (255 - 255 * torch.cat(rows)).byte().numpy()
Image.fromarray(pixels).resize((800, 240), Image.Resampling.NEAREST).save(folder / "tasks.png")
show(folder / "tasks.png")

# %% [markdown]
# ## Learning
#
# `lps train` on the command line does the same: it learns the tasks one after another, tests all of them after each,
# and writes a folder with the model, the settings, the measurements and a page with figures. Accuracies in the column
# *now* are equal to those *when learnt*: nothing is forgotten.

# %%
run = folder / "run"
code = train.main(["--tasks", "3", "--epochs", "5,15,5", "--threads", "1", "--output", str(run)])
assert code == 0

# %% [markdown]
# ## Figures of the run
#
# `lps.report` makes a page of one or several runs, and single figures.

# %%
report.main([str(run), "-o", str(folder / "report.html"), "--figures", str(folder / "figures")])
for figure in sorted((folder / "figures").glob("*.svg")):
    show(figure)

# %% [markdown]
# ## Who owns which weight
#
# The second layer, a pixel per weight: grey is free, red belongs to task 1, green to task 2, blue to task 3. An owner's
# weights never change again; later tasks may read them where their mask says so.

# %%
net = lps.load(run / "model.lps").eval()
colours = np.array([[225, 225, 225], [200, 70, 60], [70, 150, 80], [60, 90, 180]], np.uint8)
second = next(partition for partition, _ in list(net.prunable())[1:])
owners = second.owner.reshape(len(second.owner), -1).numpy() & 0x7F  # the top bit is the projection's
Image.fromarray(colours[owners]).resize((768, 768), Image.Resampling.NEAREST).save(folder / "owners.png")
show(folder / "owners.png")
for number, name in enumerate(["free", *(learnt.name for learnt in net.learnt)]):
    print(f"{name}: {100 * float((owners == number).mean()):.1f} % of this layer")

# %% [markdown]
# ## One task alone
#
# A task can be cut out: a plain module without the weights that it does not use, with the same answers up to rounding.

# %%
small = net.extract(task=3)
inputs, labels = tasks[2].test.batch(torch.arange(len(tasks[2].test)))
with torch.no_grad():
    whole, cut = net(inputs, task=3), small(inputs)
print(f"largest difference of a logit: {float((whole - cut).abs().max()):.1e}, of {float(whole.abs().max()):.1f}")
print(f"right: {100 * float((cut.argmax(1) == labels).float().mean()):.1f} %")
