/* Slurm's entry points: each calls the file of its context. bivouac.h has the table. */
#include "bivouac.h"

SPANK_PLUGIN(bivouac, 1)

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	if (settings_parse(ac, av) < 0)
		return -1;
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
	case S_CTX_LOCAL:
		submit_init();
		return options_register(sp);
	case S_CTX_REMOTE:
		options_register(sp); /* logged there; a failing init would drain the node */
		return 0;
	default:
		return 0;
	}
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
	case S_CTX_LOCAL:
		return submit_post_opt(sp);
	default:
		return 0;
	}
}

int slurm_spank_local_user_init(spank_t sp, int ac, char **av)
{
	(void)sp;
	(void)ac;
	(void)av;
	return submit_local_user_init();
}

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	return remote_user_init(sp);
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	return remote_task_init(sp);
}

int slurm_spank_job_prolog(spank_t sp, int ac, char **av)
{
	(void)sp;
	return settings_parse(ac, av) < 0 ? -1 : jobscript_prolog(); /* init is not called in this context */
}

int slurm_spank_job_epilog(spank_t sp, int ac, char **av)
{
	(void)sp;
	return settings_parse(ac, av) < 0 ? -1 : jobscript_epilog();
}
