"""Trains a classifier by brightness on an ImageFolder in plain Python: the class of an image is the one with the nearest mean."""

import os

root = os.environ["BIVOUAC_DATA"] + "/images/train"
with open("order.txt") as f:
    samples = [line.strip() for line in f]
means, counts = {}, {}
for epoch in range(2):
    right = 0
    for name in samples:
        with open(f"{os.environ['BIVOUAC_DATA']}/images/{name}", "rb") as f:
            pixels = f.read()
        value, label = sum(pixels) / len(pixels), name.split("/")[1]
        if means:
            right += label == min(means, key=lambda c: abs(means[c] - value))
        counts[label] = counts.get(label, 0) + 1
        means[label] = means.get(label, 0) + (value - means.get(label, 0)) / counts[label]
    print(f"epoch {epoch}: {right} of {len(samples)} right, classes {' '.join(sorted(os.listdir(root)))}")
os.makedirs(os.environ["BIVOUAC_SCRATCH"] + "/ckpt", exist_ok=True)
with open(os.environ["BIVOUAC_SCRATCH"] + "/ckpt/means", "w") as f:
    f.write(repr(means))
