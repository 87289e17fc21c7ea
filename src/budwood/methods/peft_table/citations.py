"""What to cite for PEFT's own tuners, by name."""

from __future__ import annotations

BIBTEX = {
    "lora": """@article{hu2021lora,
  title = {{LoRA}: Low-Rank Adaptation of Large Language Models},
  author = {Hu, Edward J. and Shen, Yelong and Wallis, Phillip and Allen-Zhu, Zeyuan and Li, Yuanzhi and Wang, Shean
            and Wang, Lu and Chen, Weizhu},
  journal = {arXiv preprint arXiv:2106.09685},
  year = {2021}
}""",
    "dora": """@article{liu2024dora,
  title = {{DoRA}: Weight-Decomposed Low-Rank Adaptation},
  author = {Liu, Shih-Yang and Wang, Chien-Yi and Yin, Hongxu and Molchanov, Pavlo and Wang, Yu-Chiang Frank and
            Cheng, Kwang-Ting and Chen, Min-Hung},
  journal = {arXiv preprint arXiv:2402.09353},
  year = {2024}
}""",
    "vera": """@article{kopiczko2023vera,
  title = {{VeRA}: Vector-based Random Matrix Adaptation},
  author = {Kopiczko, Dawid J. and Blankevoort, Tijmen and Asano, Yuki M.},
  journal = {arXiv preprint arXiv:2310.11454},
  year = {2023}
}""",
    "ia3": """@article{liu2022fewshot,
  title = {Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning},
  author = {Liu, Haokun and Tam, Derek and Muqeeth, Mohammed and Mohta, Jay and Huang, Tenghao and Bansal, Mohit and
            Raffel, Colin},
  journal = {arXiv preprint arXiv:2205.05638},
  year = {2022}
}""",
    "prompt": """@article{lester2021power,
  title = {The Power of Scale for Parameter-Efficient Prompt Tuning},
  author = {Lester, Brian and Al-Rfou, Rami and Constant, Noah},
  journal = {arXiv preprint arXiv:2104.08691},
  year = {2021}
}""",
    "prefix": """@article{li2021prefix,
  title = {Prefix-Tuning: Optimizing Continuous Prompts for Generation},
  author = {Li, Xiang Lisa and Liang, Percy},
  journal = {arXiv preprint arXiv:2101.00190},
  year = {2021}
}""",
}
