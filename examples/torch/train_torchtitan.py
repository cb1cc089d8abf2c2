"""Trains a model of deltarule.hf with torchtitan's Trainer (written for torchtitan 0.3) on the bytes of a file, on any number of processes:

    torchrun --nproc-per-node 2 examples/torch/train_torchtitan.py --dataloader.dataset-path FILE --training.steps 100

Every option of torchtitan's configuration can be given (--help lists them); `small` below holds the model and the defaults. Parameters
are float32 and sharded layer by layer (FSDP2). With --training.mixed-precision-param bfloat16 products and vectors are computed in
bfloat16 under autocast, while A_log, dt_bias, norms, gates and decays stay float32. First values are always the same and batches depend
on the step alone, whatever the number of processes. With --checkpoint.enable a run goes on where its --dump-folder ends. torchtitan
asks for an accelerator: where PyTorch sees no GPU, `Cpu` answers in its place.
"""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchtitan.tools import utils

from deltarule.hf import DeltaruleConfig, DeltaruleForCausalLM


class Cpu:
    """torch.cpu, with what torchtitan asks a device's module about its memory: nothing is measured, so every figure is 0."""
    current_device = staticmethod(lambda: 0)
    get_device_name = staticmethod(lambda device: "CPU")
    get_device_properties = staticmethod(lambda device: SimpleNamespace(total_memory=1))
    reset_peak_memory_stats = empty_cache = staticmethod(lambda: None)
    memory_stats = staticmethod(lambda device: {"active_bytes.all.peak": 0, "reserved_bytes.all.peak": 0})

    def __getattr__(self, name):
        return getattr(torch.cpu, name)


if not torch.cuda.is_available():  # before the rest of torchtitan is imported, which copies these names
    utils.device_type, utils.device_module = "cpu", Cpu()

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import TORCH_DTYPE_MAP, ParallelismConfig, TrainingConfig
from torchtitan.protocols.model import BaseModel
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.train import main
from torchtitan.trainer import Trainer


class Model(BaseModel):
    """A language model of the library as torchtitan has models: ids ``[B, T]`` to logits ``[B, T, vocabulary]``."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        settings: dict = field(default_factory=dict)  # arguments of DeltaruleConfig
        autocast: torch.dtype = torch.float32

        def update_from_config(self, *, config, **_):
            if config.parallelism.tensor_parallel_degree * config.parallelism.context_parallel_degree > 1:
                raise NotImplementedError("this example shards parameters only: leave tensor_parallel_degree and context_parallel_degree 1")
            self.autocast = TORCH_DTYPE_MAP[config.training.mixed_precision_param]

        def get_nparams_and_flops(self, model, seq_len):
            """The number of parameters, and 6 operations for each and token."""
            count = sum(one.numel() for one in model.parameters())
            return count, 6 * count

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.lm = DeltaruleForCausalLM(DeltaruleConfig(**config.settings, use_cache=False))

    def forward(self, ids, **_):
        with torch.autocast(ids.device.type, self.config.autocast, enabled=self.config.autocast != torch.float32):
            return self.lm(input_ids=ids).logits

    def verify_module_protocol(self):
        """Modules of PyTorch need not be torchtitan's: init_states gives them their values."""

    def init_states(self, *, buffer_device=None):
        """The first values of a whole model, of which each process keeps its part."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            whole = DeltaruleForCausalLM(self.lm.config)
        set_model_state_dict(self.lm, whole.state_dict(), options=StateDictOptions(full_state_dict=True))


def sharded(model, *, parallel_dims, **_):
    """FSDP2 layer by layer, with parameters and gradients in float32. Gradients are summed over the processes: the Trainer divides the
    loss by the tokens of all of them."""
    mesh, policy = parallel_dims.get_mesh("fsdp"), MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for module in (*model.lm.model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply as it sums
    return model


class Bytes(BaseTokenizer):
    """Ids are bytes."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")

    def get_vocab_size(self):
        return 256


class Text(BaseDataLoader):
    """Sequences from random places of the file dataset_path. Each process takes its rows of the batch of a step."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **_):
        if config.dataset_path is None:
            raise SystemExit("give --dataloader.dataset-path, a file whose bytes are the tokens")
        with open(config.dataset_path, "rb") as file:
            self.data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        if len(self.data) <= seq_len:
            raise SystemExit(f"{config.dataset_path} has {len(self.data)} bytes: a sequence of {seq_len} needs more")
        self.rank, self.world, self.length, self.batch, self.read = dp_rank, dp_world_size, seq_len, local_batch_size, 0

    def __iter__(self):
        while True:
            draw = torch.Generator().manual_seed(1000003 * self.read + 1)
            begin = torch.randint(0, len(self.data) - self.length, (self.batch * self.world,), generator=draw)[self.rank::self.world]
            self.read += 1
            rows = torch.stack([self.data[i:i + self.length + 1] for i in begin.tolist()]).long()
            yield {"input": rows[:, :-1]}, rows[:, 1:]

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


def small():
    """A configuration: torchtitan finds it by --module train_torchtitan --config small."""
    settings = {"rule": "gdn", "vocabulary": 256, "hidden": 64, "heads": 2, "layers": 2}
    return Trainer.Config(
        model_spec=ModelSpec(name="deltarule", flavor="small", model=Model.Config(settings=settings), parallelize_fn=sharded,
                             pipelining_fn=None, post_optimizer_build_fn=None, state_dict_adapter=None),
        tokenizer=Bytes.Config(),
        dataloader=Text.Config(),
        loss=CrossEntropyLoss.Config(),
        optimizer=default_adamw(lr=3e-3),
        training=TrainingConfig(local_batch_size=4, seq_len=128, steps=100, disable_cuda_graphs=True, mixed_precision_param="float32"),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(last_save_model_only=False),
        metrics=MetricsProcessor.Config(log_freq=1),
    )


if __name__ == "__main__":
    sys.argv[1:1] = ["--module", "train_torchtitan", "--config", "small"]
    main()
