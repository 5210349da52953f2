/*
 * Allocator and local context: sbatch, salloc and srun, as the submitting user. The options are checked by `bivouac check-options`, which
 * prints the spec (and, where the cluster has no munge, a second line with the job key), or prints the error to standard error.
 */
#include "bivouac.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static bool step; /* an srun inside of a job: it starts a step there and allocates nothing */

static void forget_key(void)
{
	unsetenv(KEY_JOB);
}

/* A submission from inside of a job is a job of its own: it must not inherit this job's bivouac. */
int submit_init(void)
{
	options_disinherit();
	step = spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID") != NULL;
	if (step || getenv("SLURM_JOB_ID") == NULL)
		return 0;
	unsetenv(SPEC_JOB);
	forget_key();
	unsetenv("BIVOUAC");
	unsetenv("BIVOUAC_DATA");
	unsetenv("BIVOUAC_SCRATCH");
	return 0;
}

/* Ends sbatch, salloc or srun with a one-line error. Returning -1 would suffice for a `required` plugin only. */
#define refuse(...)                                \
	do {                                       \
		slurm_error("bivouac: " __VA_ARGS__); \
		exit(1);                           \
	} while (0)

/* Prints why check-options failed, in its own words. */
static void complain(int status, int err)
{
	char *said = program_text(err);

	if (status == 127)
		refuse("couldn't execute %s on this host: ask the administrator to install it", settings.program);
	if (said == NULL || said[0] == '\0')
		refuse("%s check-options ended with status %d and no message", settings.program, status);
	refuse("%s", strncmp(said, "bivouac: ", 9) == 0 ? said + 9 : said);
}

static int hand_over(spank_t sp, const char *name, const char *value)
{
	spank_err_t err = spank_job_control_setenv(sp, name, value, 1);

	if (err == ESPANK_SUCCESS)
		return 0;
	slurm_error("bivouac: submission: couldn't hand %s to the prolog: %s", name, spank_strerror(err));
	return -1;
}

/* Runs check-options and passes on its output. */
static int check(spank_t sp)
{
	int rv = -1, status, out = program_memory(), err = program_memory();
	char *const first[] = {settings.program, "check-options", NULL};
	char **argv = options_arguments(first), *spec = NULL, *key;

	if (out < 0 || err < 0 || argv == NULL) {
		slurm_error("bivouac: submission: couldn't prepare check-options: %m");
		goto fail;
	}
	status = program_run(&(struct run){.argv = argv, .envp = environ, .out = out, .err = err});
	if (status != 0)
		complain(status, err);
	spec = program_text(out);
	if (spec == NULL || spec[0] == '\0') {
		slurm_error("bivouac: submission: couldn't read the spec: check-options printed nothing");
		goto fail;
	}
	key = strchr(spec, '\n');
	if (key != NULL) {
		*key++ = '\0';
		/* salloc puts the job control environment into its own before it forks the user's command, and calls no plugin in between */
		if (pthread_atfork(NULL, NULL, forget_key) != 0)
			goto fail;
	}
	if (hand_over(sp, SPEC_CONTROL, spec) < 0 || (key != NULL && hand_over(sp, KEY_CONTROL, key) < 0))
		goto fail;
	rv = 0;
fail:
	if (out >= 0)
		close(out);
	if (err >= 0)
		close(err);
	free(argv);
	free(spec);
	return rv;
}

/* Slurm calls this once for each component of a heterogeneous job: each starts without options. */
int submit_post_opt(spank_t sp)
{
	options_end_of_component();
	if (wish.count > 0 && step)
		refuse("the --bivouac options belong to the allocation: give them to sbatch, salloc or an srun outside of a job, not to a step");
	if (wish.count > 0 && check(sp) < 0)
		exit(1);
	if (wish.count == 0) {
		spank_job_control_unsetenv(sp, SPEC_CONTROL);
		spank_job_control_unsetenv(sp, KEY_CONTROL);
	}
	options_forget();
	return 0;
}

/* srun puts the job control environment into its own, from where its tasks would get the key. */
int submit_local_user_init(void)
{
	forget_key();
	return 0;
}
