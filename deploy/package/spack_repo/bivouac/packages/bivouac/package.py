from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Bivouac(MakefilePackage):
    """Filesystem that lives as long as one Slurm job, on the drives of its nodes."""

    homepage = "https://github.com/bivouacfs/bivouac"
    git = "https://github.com/bivouacfs/bivouac.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("slurm", default=True, description="Build the plugin, for the Slurm of this installation")

    depends_on("c", type="build", when="+slurm")
    depends_on("go@1.26:", type="build")
    depends_on("slurm", when="+slurm")

    def build(self, spec, prefix):
        make("build", f"VERSION={spec.version}")
        if spec.satisfies("+slurm"):
            make("-C", "spank", f"OUT={self.stage.source_path}/bin")

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
        install("bin/bivouac", prefix.bin)
        install_tree("fsclient/python/bivouac", prefix.share.bivouac.bivouac)
        if spec.satisfies("+slurm"):
            mkdirp(prefix.lib.slurm)
            install("bin/bivouac.so", prefix.lib.slurm)
        bivouac = Executable(prefix.bin.bivouac)
        bivouac("man", "--dir", prefix.share.man.man1)
        for shell, directory, name in (
            ("bash", bash_completion_path, "bivouac"),
            ("fish", fish_completion_path, "bivouac.fish"),
            ("zsh", zsh_completion_path, "_bivouac"),
        ):
            mkdirp(directory(prefix))
            with open(str(directory(prefix) / name), "w") as f:
                bivouac("completion", shell, output=f)

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", self.prefix.share.bivouac)
