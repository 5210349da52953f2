/*
 * Remote context: slurmstepd of each step. Nothing here may fail: a failing user_init drains the node, and the result of an optional plugin's
 * task_init is ignored. A task whose job asked for a bivouac and has none prints the reason to the job's output and exits.
 */
#include "bivouac.h"

#include <slurm/slurm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char path_env[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

static uint32_t job_id(spank_t sp)
{
	uint32_t job = 0;

	return spank_get_item(sp, S_JOB_ID, &job) == ESPANK_SUCCESS ? job : 0;
}

static void export(spank_t sp, const char *name, const char *value)
{
	spank_err_t err = spank_setenv(sp, name, value, 1);

	if (err != ESPANK_SUCCESS)
		slurm_error("bivouac: user_init: couldn't set %s: %s", name, spank_strerror(err));
}

/* The environment passed by srun may be that of another job (srun --jobid), or of another component of a heterogeneous job. */
static bool brought_by_another(spank_t sp)
{
	char mount[MESSAGE_MAX];
	const char *base;

	if (spank_getenv(sp, "BIVOUAC", mount, sizeof mount) != ESPANK_SUCCESS)
		return false;
	base = strrchr(mount, '/');
	return base != NULL && strtoul(base + 1, NULL, 10) != job_id(sp);
}

int remote_user_init(spank_t sp)
{
	char mount[MESSAGE_MAX], below[MESSAGE_MAX + 16];

	spank_unsetenv(sp, KEY_JOB);
	if (state_read(job_id(sp), mount, sizeof mount) != PITCH_READY) {
		if (brought_by_another(sp))
			spank_unsetenv(sp, SPEC_JOB);
		spank_unsetenv(sp, "BIVOUAC");
		spank_unsetenv(sp, "BIVOUAC_DATA");
		spank_unsetenv(sp, "BIVOUAC_SCRATCH");
		return 0;
	}
	export(sp, "BIVOUAC", mount);
	snprintf(below, sizeof below, "%s/data", mount);
	export(sp, "BIVOUAC_DATA", below);
	snprintf(below, sizeof below, "%s/scratch", mount);
	export(sp, "BIVOUAC_SCRATCH", below);
	return 0;
}

/* The spec is in the job's environment unless the user cleared that (--export=NONE, srun --jobid); the state file exists in any case. */
static bool promised(spank_t sp)
{
	char any[2];
	spank_err_t err = spank_getenv(sp, SPEC_JOB, any, sizeof any);

	return err == ESPANK_SUCCESS || err == ESPANK_NOSPACE;
}

/* Writes to the job's error output, which is this task's, and ends the task. */
__attribute__((format(printf, 1, 2), noreturn)) static void end_task(const char *format, ...)
{
	char host[256] = "this node", text[2 * MESSAGE_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	gethostname(host, sizeof host - 1);
	dprintf(STDERR_FILENO, "bivouac: %s: %s\n", host, text);
	_exit(1);
}

/* The batch script and the first step start when the data is staged; the timeout is in the spec, which the program knows. */
static bool waits(spank_t sp)
{
	uint32_t step;

	if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
		return false;
	return step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP || step == 0;
}

/* One task shows the progress of the stage-in: the batch script, or the first task of an srun or salloc. */
static bool shows_progress(spank_t sp)
{
	char environment[16];
	uint32_t step, task;

	if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step != 0)
		return true;
	if (spank_getenv(sp, "ENVIRONMENT", environment, sizeof environment) == ESPANK_SUCCESS && strcmp(environment, "BATCH") == 0)
		return false; /* the batch script has shown it */
	return spank_get_item(sp, S_TASK_GLOBAL_ID, &task) != ESPANK_SUCCESS || task == 0;
}

/* The exit status of bivouac wait if some files of a dataset could not be read: the job begins, and its output names them. */
#define WAIT_INCOMPLETE 3

static void wait_for_data(spank_t sp, uint32_t job)
{
	char id[16];
	char *argv[] = {settings.program, "wait", "--job", id, NULL, NULL};
	char *envp[] = {(char *)path_env, NULL};
	int status, log = shows_progress(sp) ? -1 : program_memory();

	snprintf(id, sizeof id, "%u", job);
	if (log < 0)
		argv[4] = "--job-output"; /* the daemon then knows where to tell what it could not copy out */
	status = program_run(&(struct run){.argv = argv, .envp = envp, .out = log, .err = log});
	if (status != 0 && log >= 0) {
		char *said = program_text(log);

		dprintf(STDERR_FILENO, "%s\n", said != NULL ? said : "");
		free(said);
	}
	if (log >= 0)
		close(log);
	if (status == 127)
		end_task("couldn't execute %s: tell the administrator", settings.program);
	if (status != 0 && status != WAIT_INCOMPLETE)
		end_task("the data of job %u did not arrive (bivouac wait ended with status %d, its reason is above)", job, status);
}

int remote_task_init(spank_t sp)
{
	uint32_t job = job_id(sp);
	char detail[MESSAGE_MAX];

	switch (state_read(job, detail, sizeof detail)) {
	case PITCH_READY:
		if (waits(sp))
			wait_for_data(sp, job);
		return 0;
	case PITCH_NONE:
		if (promised(sp))
			end_task("job %u has no bivouac here: the prolog did not pitch it (%s); see slurmd's log there", job, detail);
		if (wish.count > 0)
			end_task("job %u has no bivouac here (%s): the --bivouac options belong to sbatch, salloc or the srun that allocates", job,
				 detail);
		return 0;
	default:
		end_task("couldn't start the filesystem of job %u: %s; see %s/%u.log there", job, detail, settings.log, job);
	}
}
