"""Where every published dataset is downloaded from.

Checksums are those that others publish for the same file: torchvision for MNIST, TensorFlow Datasets for DomainNet,
and projects that use DomainBed's copies of PACS, VLCS and Office-Home, or ImageNet-R and -A. None means that none is
known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from domainwise.data.download.archives import find_parent, gather_folders, gunzip_to_raw, split_by_location


@dataclass(frozen=True)
class RemoteFile:
    """A file to download.

    Args:
        name: its local name.
        urls: addresses of the same file, in the order to try them.
        checksum: None if none is known.
        page: where a person can download it with a browser, if no URL works.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str | None
    page: str = ""


@dataclass(frozen=True)
class HubCopy:
    """A copy of a dataset on the Hugging Face Hub that has the same images, domains and classes.

    Args:
        name: `hf:owner/name`, with the columns image, label and domain.
        images: number of images per domain.
    """

    name: str
    images: Mapping[str, int]


@dataclass(frozen=True)
class Source:
    """How to get a dataset.

    Args:
        folder: name of the dataset's folder in the data folder.
        files: files to download; empty if the dataset cannot be downloaded automatically.
        arrange: turns the folder with the unpacked files into the folder with the dataset.
        megabytes: approximate size of the download.
        instructions: what to do if there are no `files`.
        hub_copy: used if no URL works. Its images are in another order, so splits differ.
        copies: where else the dataset is, for the error if nothing works. They are not tried: it is not known whether
            they have the same images.
    """

    folder: str
    homepage: str
    licence: str
    files: tuple[RemoteFile, ...] = ()
    arrange: Callable[[Path], Path] | None = None
    megabytes: int | None = None
    instructions: str = ""
    hub_copy: HubCopy | None = None
    copies: str = ""


_MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_DOMAIN_NET = "csr.bu.edu/ftp/visda/2019/multi-source/"
_DUPLICATES = "domain_net_duplicates.txt"
_DOMAINBED = "https://raw.githubusercontent.com/facebookresearch/DomainBed/"
# LILA's own copies on Google Cloud and Azure.
_CAMERA_TRAPS = (
    "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps/",
    "https://lilawildlife.blob.core.windows.net/lila-wildlife/caltechcameratraps/",
)
_CAMERA_TRAPS_PAGE = "https://lila.science/datasets/caltech-camera-traps"
_WILDS = "https://worksheets.codalab.org/rest/bundles/"
_IMAGENET_V2 = "imagenetv2-matched-frequency.tar.gz"
_WILDS_COPIES = "by WILDS' author at https://huggingface.co/pangwei/collections"
_DOMAINBED_COPIES = "archives at https://huggingface.co/datasets/PTeterwak/DomainBed_EasyHard"
_NOT_STATED = "not stated by the authors; for research, see the homepage"


def _google_drive(name: str, file_id: str, md5: str) -> RemoteFile:
    urls = (
        f"https://drive.usercontent.google.com/download?id={file_id}&export=download&confirm=t",
        f"https://drive.google.com/uc?id={file_id}&export=download&confirm=t",
    )
    return RemoteFile(name, urls, f"md5:{md5}", page=f"https://drive.google.com/file/d/{file_id}/view")


def _mnist(name: str, md5: str) -> RemoteFile:
    return RemoteFile(name, tuple(mirror + name for mirror in _MNIST_MIRRORS), f"md5:{md5}")


def _domain_net(path: str, sha256: str) -> RemoteFile:
    urls = tuple(f"{scheme}://{_DOMAIN_NET}{path}" for scheme in ("http", "https"))
    return RemoteFile(path.rpartition("/")[2], urls, f"sha256:{sha256}", page="http://ai.bu.edu/M3SDA/")


def _camera_traps(name: str) -> RemoteFile:
    return RemoteFile(name, tuple(mirror + name for mirror in _CAMERA_TRAPS), None, page=_CAMERA_TRAPS_PAGE)


def _hendrycks(name: str, md5: str) -> RemoteFile:
    return RemoteFile(name, (f"https://people.eecs.berkeley.edu/~hendrycks/{name}",), f"md5:{md5}")


def _wilds(name: str, bundle: str) -> RemoteFile:
    return RemoteFile(name, (f"{_WILDS}{bundle}/contents/blob/",), None, page="https://wilds.stanford.edu/downloads")


_MNIST = Source(
    folder="MNIST",
    homepage="http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0",
    files=(
        _mnist("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        _mnist("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        _mnist("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        _mnist("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    arrange=gunzip_to_raw,
    megabytes=12,
)

# All six challenges use parts of the same images.
_SPAWRIOUS = Source(
    folder="spawrious224",
    homepage="https://github.com/aengusl/spawrious",
    licence="MIT, of the repository",
    files=(
        RemoteFile(
            "spawrious224.tar.gz",
            (
                "https://www.dropbox.com/s/hofkueo8qvaqlp3/spawrious224__entire_dataset.tar.gz?dl=1",
                "https://www.dropbox.com/s/e40j553480h3f3s/spawrious224.tar.gz?dl=1",
            ),
            None,
            page="https://github.com/aengusl/spawrious",
        ),
    ),
    arrange=partial(find_parent, names=("0", "1")),
)

SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "mnist": _MNIST,
        "colored_mnist": _MNIST,
        "rotated_mnist": _MNIST,
        "pacs": Source(
            folder="PACS",
            homepage="https://arxiv.org/abs/1710.03077",
            licence=_NOT_STATED,
            files=(_google_drive("PACS.zip", "1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd", "fd5db817f7cdafeef3bfd525aaf9b42e"),),
            arrange=partial(find_parent, names=("art_painting", "cartoon", "photo", "sketch")),
            megabytes=174,
            hub_copy=HubCopy(
                "hf:flwrlabs/pacs", {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
            ),
            copies=_DOMAINBED_COPIES,
        ),
        "vlcs": Source(
            folder="VLCS",
            homepage="https://openaccess.thecvf.com/content_iccv_2013/html/Fang_Unbiased_Metric_Learning_2013_ICCV_paper.html",
            licence="those of its four parts: Caltech101, LabelMe, SUN09 and PASCAL VOC 2007",
            files=(
                _google_drive("VLCS.tar.gz", "1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", "8870171eba660927d9668f4e515928e4"),
            ),
            arrange=partial(find_parent, names=("Caltech101", "LabelMe", "SUN09", "VOC2007")),
            megabytes=3600,
            copies=_DOMAINBED_COPIES,
        ),
        "office_home": Source(
            folder="office_home",
            homepage="https://www.hemanthdv.org/officeHomeDataset.html",
            licence="non-commercial research and education, see the homepage",
            files=(
                _google_drive(
                    "office_home.zip", "1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC", "b1c14819770c4448fd5b6d931031c91c"
                ),
            ),
            arrange=partial(find_parent, names=("Art", "Clipart", "Product", "Real World")),
            megabytes=1100,
            copies=f"{_DOMAINBED_COPIES}, and for FiftyOne https://huggingface.co/datasets/Voxel51/Office-Home",
        ),
        "terra_incognita": Source(
            folder="terra_incognita",
            homepage=_CAMERA_TRAPS_PAGE,
            licence="Community Data License Agreement, permissive variant",
            files=(
                _camera_traps("eccv_18_all_images_sm.tar.gz"),
                _camera_traps("eccv_18_annotations.tar.gz"),
            ),
            arrange=split_by_location,
            megabytes=6496,
            copies=_DOMAINBED_COPIES,
        ),
        "domainnet": Source(
            folder="domain_net",
            homepage="http://ai.bu.edu/M3SDA/",
            licence="non-commercial research and education, see the homepage",
            files=(
                _domain_net(
                    "groundtruth/clipart.zip", "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d"
                ),
                _domain_net("infograph.zip", "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa"),
                _domain_net(
                    "groundtruth/painting.zip", "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015"
                ),
                _domain_net("quickdraw.zip", "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84"),
                _domain_net("real.zip", "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63"),
                _domain_net("sketch.zip", "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc"),
                RemoteFile(
                    _DUPLICATES,
                    tuple(
                        f"{_DOMAINBED}{version}/domainbed/misc/{_DUPLICATES}"
                        for version in ("3cf2e20fb885f3ecf2e97b83268bb6c896568075", "main")
                    ),
                    None,
                ),
            ),
            arrange=partial(
                gather_folders,
                names=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
                duplicates=_DUPLICATES,
            ),
            megabytes=18445,
            copies="--dataset hf:wltjr1007/DomainNet --dataset-option label_column=category, or " + _DOMAINBED_COPIES,
        ),
        "nico": Source(
            folder="NICO",
            homepage="https://nico.thumedialab.com/",
            licence=_NOT_STATED,
            instructions="in the data folder, put the images (animals and vehicles), which can be requested at "
            "https://nico.thumedialab.com/, at NICO/<class>/<context>/*.jpg, and env_train1.csv, env_train2.csv, "
            "env_val.csv and env_test.csv of OoD-Bench (https://github.com/m-Just/OoD-Bench, data) in "
            "NICO/mixed_split_corrected",
        ),
        "sviro": Source(
            folder="sviro",
            homepage="https://sviro.kl.dfki.de/",
            licence="see the homepage",
            files=(
                RemoteFile(
                    "sviro_grayscale_rectangle_classification.zip",
                    ("https://sviro.kl.dfki.de/?wpdmdl=1731",),
                    None,
                    page="https://sviro.kl.dfki.de/",
                ),
            ),
            arrange=partial(
                find_parent,
                names=("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
            ),
        ),
        **{f"spawrious_{kind}_{level}": _SPAWRIOUS for kind in ("o2o", "m2m") for level in ("easy", "medium", "hard")},
        "camelyon17": Source(
            folder="camelyon17_v1.0",
            homepage="https://wilds.stanford.edu/datasets/#camelyon17",
            licence="CC0",
            files=(_wilds("camelyon17_v1.0.tar.gz", "0xe45e15f39fb54e9d9e919556af67aabe"),),
            arrange=partial(find_parent, names=("patches",)),
            megabytes=10659,
            copies=f"{_WILDS_COPIES}, https://huggingface.co/datasets/wltjr1007/Camelyon17-WILDS",
        ),
        "fmow": Source(
            folder="fmow_v1.1",
            homepage="https://wilds.stanford.edu/datasets/#fmow",
            licence="FMoW Challenge Public License",
            files=(_wilds("fmow_v1.1.tar.gz", "0xaec91eb7c9d548ebb15e1b5e60f966ab"),),
            arrange=partial(find_parent, names=("images",)),
            megabytes=53893,
            copies=_WILDS_COPIES,
        ),
        "imagenet_r": Source(
            folder="imagenet-r",
            homepage="https://github.com/hendrycks/imagenet-r",
            licence="MIT, of the repository",
            files=(_hendrycks("imagenet-r.tar", "a61312130a589d0ca1a8fca1f2bd3337"),),
            arrange=partial(find_parent, names=("n01443537",)),
        ),
        "imagenet_a": Source(
            folder="imagenet-a",
            homepage="https://github.com/hendrycks/natural-adv-examples",
            licence="MIT, of the repository",
            files=(_hendrycks("imagenet-a.tar", "c3e55429088dc681f30d81f4726b6595"),),
            arrange=partial(find_parent, names=("n01498041",)),
            megabytes=688,
        ),
        "imagenet_sketch": Source(
            folder="imagenet-sketch",
            homepage="https://github.com/HaohanWang/ImageNet-Sketch",
            licence="MIT, of the repository",
            files=(
                RemoteFile(
                    "ImageNet-Sketch.zip",
                    ("https://huggingface.co/datasets/songweig/imagenet_sketch/resolve/main/data/ImageNet-Sketch.zip",),
                    None,
                    page="https://github.com/HaohanWang/ImageNet-Sketch",
                ),
            ),
            arrange=partial(find_parent, names=("n01440764",)),
        ),
        "imagenet_v2": Source(
            folder="imagenetv2-matched-frequency-format-val",
            homepage="https://github.com/modestyachts/ImageNetV2",
            licence="MIT, of the repository",
            files=(
                RemoteFile(
                    _IMAGENET_V2,
                    (
                        f"https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/{_IMAGENET_V2}",
                        f"https://s3-us-west-2.amazonaws.com/imagenetv2public/{_IMAGENET_V2}",
                    ),
                    None,
                    page="https://huggingface.co/datasets/vaishaal/ImageNetV2",
                ),
            ),
            arrange=partial(find_parent, names=("0", "999")),
        ),
    }
)
