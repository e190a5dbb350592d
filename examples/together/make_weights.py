"""Makes a toy language model, and its tokenizer, in some seconds: `python make_weights.py`.

It learns one fable by heart, which is enough to see tokens stream. `run.py` loads any folder that `transformers` can
load: replace `weights/` by that of a real model.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

TEXT = """\
The north wind and the sun disputed which of them was the stronger. Along the road came a traveller in a warm cloak.
They agreed that whoever made the traveller take it off was the stronger. The north wind blew as hard as it could.
The more it blew, the more closely did the traveller fold the cloak, and at last the north wind gave up the attempt.
Then the sun shone out warmly, and at once the traveller took off the cloak.
So the north wind had to confess that the sun was the stronger of the two.
"""
END = "<|end|>"


def make_weights(folder: Path, steps: int = 60) -> None:
    """Write a model and a tokenizer into `folder`, as `from_pretrained()` reads them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so small a model, several threads cost more than they bring
    torch.manual_seed(0)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()  # so that any text can be a prompt
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=[END], initial_alphabet=letters, show_progress=False)
    bpe.train_from_iterator([TEXT], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=END)
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=256,
        n_embd=96,
        n_layer=2,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = GPT2LMHeadModel(config)
    ids = torch.tensor([[*tokenizer(TEXT).input_ids, end]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        predicted = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, :-1]
        loss = cross_entropy(predicted, ids[0, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}")
    torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make_weights(Path(__file__).parent / "weights")
