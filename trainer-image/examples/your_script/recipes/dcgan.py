"""In the style of the DCGAN example: two optimizers, three backward passes for each batch."""

import argparse

import ddp_trainer
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOISE, FEATURES = 16, 8


def generator():
    """Turns noise into 8x8 images."""
    return nn.Sequential(
        *(nn.ConvTranspose2d(NOISE, 2 * FEATURES, 2, bias=False), nn.BatchNorm2d(2 * FEATURES)),
        *(nn.ReLU(), nn.ConvTranspose2d(2 * FEATURES, FEATURES, 4, 2, 1, bias=False)),
        *(nn.BatchNorm2d(FEATURES), nn.ReLU(), nn.ConvTranspose2d(FEATURES, 1, 4, 2, 1), nn.Tanh()),
    )


def discriminator():
    """Estimates how likely an image is real."""
    return nn.Sequential(
        *(nn.Conv2d(1, FEATURES, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(FEATURES, 2 * FEATURES, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * FEATURES)),
        *(nn.LeakyReLU(0.2), nn.Conv2d(2 * FEATURES, 1, 2), nn.Flatten(0), nn.Sigmoid()),
    )


def weights_init(module):
    """Draw the initial weights as in the DCGAN paper."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def main():
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    digits = torch.tensor(load_digits().images[:320], dtype=torch.float32).unsqueeze(1) / 8 - 1
    loader = DataLoader(TensorDataset(digits), 16, shuffle=True)
    net_g, net_d = generator().apply(weights_init), discriminator().apply(weights_init)
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(4, NOISE, 1, 1)
    with ddp_trainer.join(
        generator=net_g,
        discriminator=net_d,
        optimizer_g=optimizer_g,
        optimizer_d=optimizer_d,
        checkpoint_every_steps=5,
    ) as job:
        generate, judge = job.wrap(net_g), job.wrap(net_d)
        fixed_noise = fixed_noise.to(job.device)
        for epoch in job.epochs(options.epochs):
            for (images,) in job.batches(loader):
                real = images.to(job.device)
                ones = torch.ones(len(real), device=job.device)
                zeros = torch.zeros(len(real), device=job.device)
                fake = generate(torch.randn(len(real), NOISE, 1, 1, device=job.device))

                loss_real = criterion(judge(real), ones)
                loss_real.backward()
                loss_fake = criterion(judge(fake.detach()), zeros)
                loss_fake.backward()
                job.step(loss_real + loss_fake, optimizer=optimizer_d)

                loss = criterion(judge(fake), ones)
                loss.backward()
                job.step(loss, optimizer=optimizer_g)
            if job.is_main:
                net_g.eval()
                with torch.no_grad():
                    brightness = net_g(fixed_noise).mean()
                net_g.train()
                print(f"epoch {epoch}: brightness {brightness:.5f}", flush=True)


if __name__ == "__main__":
    main()
