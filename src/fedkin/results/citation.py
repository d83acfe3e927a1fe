"""BibTeX of what was used: fedkin, and the paper of each method."""

from __future__ import annotations

from collections.abc import Iterable

FEDKIN = """@software{fedkin,
  title = {fedkin: personalized federated learning},
  author = {{The fedkin developers}},
  year = {2026}
}"""

# By the name of the method; a variant (fedavg-ft, …) has its own line only where it has its own paper.
BIBTEX: dict[str, str] = {
    "fedcedar": """@inproceedings{wang2024rethinking,
  title = {Rethinking Personalized Federated Learning with Clustering-based Dynamic Graph Propagation},
  author = {Wang, Jiaqi and Chen, Yuzhong and Wu, Yuhang and Das, Mahashweta and Yang, Hao and Ma, Fenglong},
  booktitle = {Pacific-Asia Conference on Knowledge Discovery and Data Mining (PAKDD)},
  year = {2024}
}""",
    "pflic": """@article{zhang2025pflic,
  title = {{PFLIC}: A Novel Personalized Federated Learning-Based Iterative Clustering},
  author = {Zhang, Shiwen and Chen, Shuang and Liang, Wei and Li, Kuanching and Castiglione, Arcangelo and Yuan, Junsong},
  journal = {Computer Science and Information Systems (ComSIS)},
  year = {2025}
}""",
    "pfedgat": """@article{zhou2025personalized,
  title = {Personalized Federated Learning via Learning Dynamic Graphs},
  author = {Zhou, Ziran and Gao, Guanyu and Wu, Xiaohu and Lyu, Yan},
  journal = {arXiv preprint arXiv:2503.05474},
  year = {2025}
}""",
    "dcpfl": """@article{liu2025dynamic,
  title = {Dynamic Clustering for Personalized Federated Learning on Heterogeneous Edge Devices},
  author = {Liu, Heting and Huang, Junzhe and He, Fang and Cao, Guohong},
  journal = {arXiv preprint arXiv:2508.01580},
  year = {2025}
}""",
    "fedavg": """@inproceedings{mcmahan2017communication,
  title = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and {Ag{\\"u}era y Arcas}, Blaise},
  booktitle = {International Conference on Artificial Intelligence and Statistics (AISTATS)},
  year = {2017}
}""",
    "fedprox": """@inproceedings{li2020federated,
  title = {Federated Optimization in Heterogeneous Networks},
  author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and Smith, Virginia},
  booktitle = {Conference on Machine Learning and Systems (MLSys)},
  year = {2020}
}""",
    "fedamp": """@inproceedings{huang2021personalized,
  title = {Personalized Cross-Silo Federated Learning on Non-{IID} Data},
  author = {Huang, Yutao and Chu, Lingyang and Zhou, Zirui and Wang, Lanjun and Liu, Jiangchuan
            and Pei, Jian and Zhang, Yong},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2021}
}""",
    "heurfedamp": """@inproceedings{huang2021personalized,
  title = {Personalized Cross-Silo Federated Learning on Non-{IID} Data},
  author = {Huang, Yutao and Chu, Lingyang and Zhou, Zirui and Wang, Lanjun and Liu, Jiangchuan
            and Pei, Jian and Zhang, Yong},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2021}
}""",
    "perfedavg": """@inproceedings{fallah2020personalized,
  title = {Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach},
  author = {Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}""",
    "scaffold": """@inproceedings{karimireddy2020scaffold,
  title = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  author = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and Stich, Sebastian U. and Suresh, Ananda Theertha},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2020}
}""",
    "ifca": """@inproceedings{ghosh2020efficient,
  title = {An Efficient Framework for Clustered Federated Learning},
  author = {Ghosh, Avishek and Chung, Jichan and Yin, Dong and Ramchandran, Kannan},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}""",
    "fednova": """@inproceedings{wang2020tackling,
  title = {Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization},
  author = {Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}""",
    "pfedme": """@inproceedings{dinh2020personalized,
  title = {Personalized Federated Learning with Moreau Envelopes},
  author = {{T. Dinh}, Canh and Tran, Nguyen H. and Nguyen, Tuan Dung},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}""",
    "cfl": """@article{sattler2021clustered,
  title = {Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints},
  author = {Sattler, Felix and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  journal = {IEEE Transactions on Neural Networks and Learning Systems},
  year = {2021}
}""",
    "moon": """@inproceedings{li2021model,
  title = {Model-Contrastive Federated Learning},
  author = {Li, Qinbin and He, Bingsheng and Song, Dawn},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2021}
}""",
    "fedbn": """@inproceedings{li2021fedbn,
  title = {{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization},
  author = {Li, Xiaoxiao and Jiang, Meirui and Zhang, Xiaofei and Kamp, Michael and Dou, Qi},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021}
}""",
    "fedsem": """@misc{xie2020multi,
  title = {Multi-Center Federated Learning},
  author = {Xie, Ming and Long, Guodong and Shen, Tao and Zhou, Tianyi and Wang, Xianzhi and Jiang, Jing
            and Zhang, Chengqi},
  year = {2020},
  eprint = {2005.01026},
  archivePrefix = {arXiv}
}""",
    "fedrod": """@inproceedings{chen2022bridging,
  title = {On Bridging Generic and Personalized Federated Learning for Image Classification},
  author = {Chen, Hong-You and Chao, Wei-Lun},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2022}
}""",
    "sfl": """@inproceedings{chen2022personalized,
  title = {Personalized Federated Learning With a Graph},
  author = {Chen, Fengwen and Long, Guodong and Wu, Zonghan and Zhou, Tianyi and Jiang, Jing},
  booktitle = {International Joint Conference on Artificial Intelligence (IJCAI)},
  year = {2022}
}""",
    "knnper": """@inproceedings{marfoq2022personalized,
  title = {Personalized Federated Learning through Local Memorization},
  author = {Marfoq, Othmane and Neglia, Giovanni and Vidal, Richard and Kameni, Laetitia},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2022}
}""",
    "fedah": """@misc{zhou2024fedah,
  title = {{FedAH}: Aggregated Head for Personalized Federated Learning},
  author = {Zhou, Pengzhan and He, Yuepeng and Zhai, Yijun and Gao, Kaixin and Chen, Chao and
            Qin, Zhida and Zhang, Chong and Guo, Songtao},
  note = {arXiv:2412.01295},
  year = {2024}
}""",
    "clusterfl": """@inproceedings{ouyang2021clusterfl,
  title = {{ClusterFL}: A Similarity-Aware Federated Learning System for Human Activity Recognition},
  author = {Ouyang, Xiaomin and Xie, Zhiyuan and Zhou, Jiayu and Huang, Jianwei and Xing, Guoliang},
  booktitle = {International Conference on Mobile Systems, Applications, and Services (MobiSys)},
  year = {2021}
}""",
    "pfedbayes": """@inproceedings{zhang2022personalized,
  title = {Personalized Federated Learning via Variational {B}ayesian Inference},
  author = {Zhang, Xu and Li, Yinchuan and Li, Wenpeng and Guo, Kaiyang and Shao, Yunfeng},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2022}
}""",
    "pfedhn": """@inproceedings{shamsian2021personalized,
  title = {Personalized Federated Learning using Hypernetworks},
  author = {Shamsian, Aviv and Navon, Aviv and Fetaya, Ethan and Chechik, Gal},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}""",
    "clustered-sampling": """@inproceedings{fraboni2021clustered,
  title = {Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection in Federated Learning},
  author = {Fraboni, Yann and Vidal, Richard and Kameni, Laetitia and Lorenzi, Marco},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}""",
    "ditto": """@inproceedings{li2021ditto,
  title = {Ditto: Fair and Robust Federated Learning Through Personalization},
  author = {Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}""",
    "apfl": """@misc{deng2020adaptive,
  title = {Adaptive Personalized Federated Learning},
  author = {Deng, Yuyang and Kamani, Mohammad Mahdi and Mahdavi, Mehrdad},
  note = {arXiv:2003.13461},
  year = {2020}
}""",
    "pfedgraph": """@inproceedings{ye2023personalized,
  title = {Personalized Federated Learning with Inferred Collaboration Graphs},
  author = {Ye, Rui and Ni, Zhenyang and Wu, Fangzhao and Chen, Siheng and Wang, Yanfeng},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2023}
}""",
    "fedfomo": """@inproceedings{zhang2021personalized,
  title = {Personalized Federated Learning with First Order Model Optimization},
  author = {Zhang, Michael and Sapra, Karan and Fidler, Sanja and Yeung, Serena and Alvarez, Jose M.},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021}
}""",
    "fedrep": """@inproceedings{collins2021exploiting,
  title = {Exploiting Shared Representations for Personalized Federated Learning},
  author = {Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}""",
    "fedper": """@misc{arivazhagan2019federated,
  title = {Federated Learning with Personalization Layers},
  author = {Arivazhagan, Manoj Ghuhan and Aggarwal, Vinay and Singh, Aaditya Kumar and Choudhary, Sunav},
  note = {arXiv:1912.00818},
  year = {2019}
}""",
    "fedala": """@inproceedings{zhang2023fedala,
  title = {{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning},
  author = {Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui and Ma, Ruhui and Guan, Haibing},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2023}
}""",
    "fedaghn": """@misc{song2025fedaghn,
  title = {{FedAGHN}: Personalized Federated Learning with Attentive Graph {HyperNetworks}},
  author = {Song, Jiarui and Shen, Yunheng and Hou, Chengbin and Wang, Pengyu and Wang, Jinbao and Tang, Ke
            and Lv, Hairong},
  year = {2025},
  eprint = {2501.16379},
  archivePrefix = {arXiv}
}""",
    "lg-fedavg": """@misc{liang2020think,
  title = {Think Locally, Act Globally: Federated Learning with Local and Global Representations},
  author = {Liang, Paul Pu and Liu, Terrance and Liu, Ziyin and Allen, Nicholas B. and
            Auerbach, Randy P. and Brent, David and Salakhutdinov, Ruslan and Morency, Louis-Philippe},
  note = {arXiv:2001.01523},
  year = {2020}
}""",
    "fedbabu": """@inproceedings{oh2022fedbabu,
  title = {{FedBABU}: Toward Enhanced Representation for Federated Image Classification},
  author = {Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2022}
}""",
    "fedgroup": """@misc{duan2020fedgroup,
  title = {{FedGroup}: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure},
  author = {Duan, Moming and Liu, Duo and Ji, Xinyuan and Liu, Renping and Liang, Liang and Chen, Xianzhang
            and Tan, Yujuan},
  year = {2020},
  eprint = {2010.06870},
  archivePrefix = {arXiv}
}""",
}  # fmt: skip


def citation(methods: Iterable[str]) -> str:
    """The entries for these methods, each once; a variant cites the paper of its method."""
    found = [FEDKIN]
    for name in methods:
        base = name.split(",")[0]
        entry = BIBTEX.get(base) or BIBTEX.get(base.rsplit("-", 1)[0])
        if entry is not None and entry not in found:
            found.append(entry)
    return "\n\n".join(found) + "\n"
