/*
 * The SPANK plugin of Bivouac: it parses and validates options, hands them to the prolog, and executes the program `bivouac`. What a bivouac
 * is and does is the program's business; the plugin knows a spec (an opaque string), a state file (one line) and exit statuses.
 *
 *   context                    file           what happens
 *   allocator (sbatch, salloc) submit.c       options -> `bivouac check-options` -> the spec, in the job control environment
 *   local (srun)               submit.c       the same for an srun that allocates; a step refuses the options
 *   job_script (prolog, epilog) jobscript.c   `bivouac prolog`, `bivouac epilog`, as root on every node of the job
 *   remote (slurmstepd)        remote.c       BIVOUAC* in the job's environment; a task without its bivouac ends itself
 *
 * The plugin is loaded as `optional`, so that a missing or mismatched bivouac.so breaks nobody's sbatch. Slurm then ignores what its functions
 * return, therefore a refusal is a message and an exit of the process at hand: of sbatch, of the task, of `slurmstepd spank prolog`.
 */
#ifndef BIVOUAC_H
#define BIVOUAC_H

#include <limits.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The spec travels from the submission to the prolog as SPANK_BIVOUAC_SPEC and is in the job as SLURM_SPANK_BIVOUAC_SPEC. */
#define SPEC_CONTROL "BIVOUAC_SPEC"
#define SPEC_PROLOG "SPANK_BIVOUAC_SPEC"
#define SPEC_JOB "SLURM_SPANK_BIVOUAC_SPEC"

/* The job key, only where the nodes have no munge to hand it over. It must not stay in the job's environment. */
#define KEY_CONTROL "BIVOUAC_KEY"
#define KEY_JOB "SLURM_SPANK_BIVOUAC_KEY"

#define MESSAGE_MAX 1024 /* bytes of one message, and of the state file's line */

/* The plugin's arguments in plugstack.conf: the only global state, filled by settings_parse. */
struct settings {
	char program[PATH_MAX]; /* bivouac=PATH */
	char run[PATH_MAX / 2]; /* run=DIR: holds <jobid>/state */
	char log[PATH_MAX / 2]; /* log=DIR: holds <jobid>.log, for messages */
};
extern struct settings settings;
int settings_parse(int ac, char **av);

/* What the user asked for, as the option callbacks heard it. */
struct option {
	int val;
	char *arg; /* "" for none */
};
struct wish {
	struct option *options;
	size_t count; /* 0: no bivouac was asked for */
};
extern struct wish wish;
int options_register(spank_t sp);
void options_disinherit(void);                /* removes the options of the job around us from the environment */
void options_end_of_component(void);          /* all that was given for this component of the submission has been heard */
void options_forget(void);                    /* the next component begins with nothing */
char **options_arguments(char *const *first); /* first and the options as arguments of `bivouac check-options`; strings not copied */

/* A program's run. Standard output and error go to the given memory files, or stay this process's where the descriptor is -1. */
struct run {
	char *const *argv;
	char *const *envp;
	int out;
	int err;
};
int program_run(const struct run *run); /* exit status; 128 + signal; 127 it could not be executed */
int program_memory(void);               /* an empty memory file, or -1 */
char *program_text(int fd);             /* its first 64 KiB, trailing white space removed; NULL without memory */
char **program_environment(const char *const *more); /* environ, with "NAME=value" of more and a PATH in place of its own */
void program_log(const char *who, int fd); /* its lines as lines of slurmd's log */

/* The node-local state of a job's bivouac, written by the prolog. It is read instead of the mount, which might hang. */
enum pitch { PITCH_NONE, PITCH_STARTING, PITCH_READY, PITCH_FAILED };
enum pitch state_read(uint32_t job, char *detail, size_t size); /* detail: the mountpoint, or why there is none */
bool state_exists(const char *job);

/* One function for each of Slurm's calls, by context. */
int submit_init(void);
int submit_post_opt(spank_t sp);
int submit_local_user_init(void);
int jobscript_prolog(void);
int jobscript_epilog(void);
int remote_user_init(spank_t sp);
int remote_task_init(spank_t sp);

#endif
