"""PyTorch, which knows nothing of farpage."""

import os
import subprocess
import textwrap


TORCH = """
    import sys
    import numpy as np, torch
    import farpage as fp

    class Rows(torch.utils.data.Dataset):
        def __init__(self, tensor):
            self.tensor = tensor
        def __len__(self):
            return len(self.tensor)
        def __getitem__(self, row):
            return self.tensor[row].sum()

    def main():
        array = fp.open(sys.argv[1], dtype="f8", shape=(-1, 1024), mode="c", ram="4M")
        tensor = torch.from_numpy(array)
        wanted = np.fromfile(sys.argv[1]).reshape(-1, 1024).sum(1)
        assert np.allclose(tensor.sum(1).numpy(), wanted)
        loader = torch.utils.data.DataLoader(Rows(tensor), batch_size=64, num_workers=2)
        assert np.allclose(torch.cat(list(loader)).numpy(), wanted)
        tensor += 1
        assert np.allclose(array.sum(1), wanted + 1024)
        print("ok")

    if __name__ == "__main__":
        main()
"""


def test_pytorch_trains_on_a_private_copy_with_two_workers(numbers, tmp_path):
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(TORCH))
    run = [os.environ["FARPAGE_TORCH_PYTHON"], path, numbers[0]]
    done = subprocess.run(run, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
