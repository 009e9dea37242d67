"""How regular expressions split strings, by the regex module (pip install regex): writes splits.json.

The expressions are those of llama.cpp's pre-tokenizers, each applied to what the one before made.
"""
import base64
import json
import os

import regex

from generate import HERE, LLAMA3, QWEN2, DEEPSEEK, strings

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The letters with case that DeepSeek's expression lists, told by what it leaves out.
CASED = (r"[[\p{Lu}\p{Ll}\p{Lt}\u0295]--[\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2d\ua790-\uab6f"
         r"\U00010570-\U00010c7f\U00010cf3-\U0001189f\U000118e0-\U0001e8ff\U0001e944-\U0010ffff]]")
MARKS = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
PATTERNS = {
    "gpt-2": [GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "deepseek-coder": DEEPSEEK,
    "deepseek-llm": [r"[\r\n]", r"\s?" + CASED + "+", MARKS, r"\s+$", DEEPSEEK[3], r"\p{N}+"],
    "falcon": ["[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "starcoder": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


def split(text, expressions):
    parts = [text] if text else []
    for e in expressions:
        compiled, out = regex.compile(e, regex.V1), []
        for part in parts:
            at = 0
            for m in compiled.finditer(part):
                if m.start() > at:
                    out.append(part[at:m.start()])
                if m.end() > m.start():
                    out.append(m.group())
                at = m.end()
            if at < len(part):
                out.append(part[at:])
        parts = out
    return parts


def main(count=200, seed=5, path=os.path.join(HERE, "splits.json")):
    texts = strings(count, seed)
    out = {"texts": [base64.b64encode(s).decode() for s in texts], "lengths": {}}
    for name, expressions in PATTERNS.items():
        out["lengths"][name] = [[len(p.encode()) for p in split(s.decode(errors="replace"), expressions)] for s in texts]
    with open(path, "w") as f:
        f.write(json.dumps(out, separators=(",", ":")) + "\n")
    print(os.path.getsize(path), "bytes", {k: sum(map(len, v)) for k, v in out["lengths"].items()})


if __name__ == "__main__":
    import sys
    if len(sys.argv) == 4:  # count, seed, path
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        main()
