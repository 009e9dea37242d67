"""Small tokenizer.model files, and what the sentencepiece library (pip install sentencepiece) makes of random strings.

Writes model-*/tokenizer.model, where it is not there yet, and model-*/ids.json.
"""
import base64
import json
import os
import tempfile

import sentencepiece

from generate import HERE, TEXT, strings

COMMON = {"normalization_rule_name": "identity", "model_type": "bpe", "character_coverage": 0.98, "byte_fallback": True, "minloglevel": 2}
MODELS = {
    "model-user": {"vocab_size": 560, "remove_extra_whitespaces": False, "user_defined_symbols": ["<tool>", "12", "\n\n"], "control_symbols": ["<|end|>"]},
    "model-squeeze": {"vocab_size": 560, "remove_extra_whitespaces": True},
    "model-across": {"vocab_size": 900, "remove_extra_whitespaces": False, "split_by_whitespace": False},
    "model-plain": {"vocab_size": 300, "remove_extra_whitespaces": False, "add_dummy_prefix": False, "byte_fallback": False},
}


def main():
    texts = [s.decode(errors="replace") for s in strings(120, 21)] + ["a<tool>b <tool> c", "x 12 123 y12", "▁", "a  b   c ", "\n\n\n"]
    for name, options in MODELS.items():
        folder = os.path.join(HERE, name)
        path = os.path.join(folder, "tokenizer.model")
        if not os.path.exists(path):
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryDirectory() as work:
                data = os.path.join(work, "text")
                with open(data, "w") as f:
                    f.write(TEXT)
                cwd = os.getcwd()
                os.chdir(work)  # the model names its training file
                sentencepiece.SentencePieceTrainer.train(input="text", model_prefix="m", hard_vocab_limit=False, **{**COMMON, **options})
                os.chdir(cwd)
                os.replace(os.path.join(work, "m.model"), path)
        p = sentencepiece.SentencePieceProcessor(model_file=path)
        with open(os.path.join(folder, "ids.json"), "w") as f:
            f.write(json.dumps([[base64.b64encode(s.encode()).decode(), p.encode(s)] for s in texts], separators=(",", ":")) + "\n")
        print(name, p.get_piece_size(), "tokens,", sum(len(p.encode(s)) for s in texts), "ids,", os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
