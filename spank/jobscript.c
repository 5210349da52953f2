/*
 * Job script context: `slurmstepd spank prolog|epilog` on every node, as root. A status other than 0 makes Slurm drain the node and hold the
 * job, so it is reserved for EXIT_NODE, with which the program reports a faulty node; every other failure concerns only the job, which reads it
 * from the state file. Slurm ignores the result of an optional plugin, so a faulty node is reported by exiting the process.
 */
#include "bivouac.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_NODE 75 /* EX_TEMPFAIL of `bivouac prolog` and `bivouac epilog`: a fault of this node */

static int run_as_root(char *what)
{
	static const char *const path[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
	char *argv[] = {settings.program, what, NULL};
	char **envp = program_environment(path);
	int log = program_memory(), status;

	if (envp == NULL || log < 0) {
		slurm_error("bivouac: %s: couldn't prepare the program: %m", what);
		status = EXIT_NODE;
	} else {
		status = program_run(&(struct run){.argv = argv, .envp = envp, .out = log, .err = log});
		program_log(what, log);
	}
	if (log >= 0)
		close(log);
	free(envp);
	if (status != 0)
		slurm_error("bivouac: %s: %s ended with status %d%s", what, settings.program, status,
			    status == EXIT_NODE ? ": this node is sick" : "");
	if (status == EXIT_NODE)
		exit(1);
	return 0;
}

int jobscript_prolog(void)
{
	return getenv(SPEC_PROLOG) != NULL ? run_as_root("prolog") : 0;
}

int jobscript_epilog(void)
{
	const char *job = getenv("SLURM_JOB_ID");

	if (getenv(SPEC_PROLOG) == NULL && (job == NULL || !state_exists(job)))
		return 0;
	return run_as_root("epilog");
}
