/* The four options, and what is remembered of them. */
#include "bivouac.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

struct wish wish;

enum { BARE = 1, STAGE_IN, STAGE_OUT, OPTS };

static const char *const flag_of[] = {[STAGE_IN] = "--stage-in", [STAGE_OUT] = "--stage-out", [OPTS] = "--opts"};

/* Adds "flag value" to the arguments of check-options. */
static int remember(const char *flag, const char *value)
{
	char **grown = realloc(wish.arguments, (wish.count + 3) * sizeof *grown);

	if (grown == NULL)
		return -1;
	wish.arguments = grown;
	wish.arguments[wish.count] = strdup(flag);
	wish.arguments[wish.count + 1] = strdup(value);
	wish.arguments[wish.count + 2] = NULL;
	if (wish.arguments[wish.count] == NULL || wish.arguments[wish.count + 1] == NULL)
		return -1;
	wish.count += 2;
	return 0;
}

/* Slurm hands on a missing argument as the string "(null)", and on the nodes it knows only the last of a repeated option: there the fact counts. */
static int heard(int val, const char *arg, int remote)
{
	wish.wanted = true;
	if (val == BARE || remote)
		return 0;
	if (arg == NULL || strcmp(arg, "(null)") == 0)
		arg = "";
	if (val < STAGE_IN || val > OPTS || remember(flag_of[val], arg) < 0) {
		slurm_error("bivouac: submission: couldn't remember the option %d: %m", val);
		return -1;
	}
	return 0;
}

static struct spank_option options[] = {
	{"bivouac", NULL, "give the job a filesystem of its own on its nodes' local disks ($BIVOUAC)", 0, BARE, heard},
	{"bivouac-stage-in", "SRC[:NAME]", "unpack a tar, or copy a directory, to $BIVOUAC_DATA/NAME before the job starts (repeatable)", 1, STAGE_IN,
	 heard},
	{"bivouac-stage-out", "FROM:TO", "copy $BIVOUAC_SCRATCH/FROM to the directory TO when the job ends (repeatable)", 1, STAGE_OUT, heard},
	{"bivouac-opts", "KEY=VALUE,...", "settings of the job's bivouac, for instance wait=all,capacity=400G", 1, OPTS, heard},
};

int options_register(spank_t sp)
{
	for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
		spank_err_t err = spank_option_register(sp, &options[i]);

		if (err != ESPANK_SUCCESS) {
			slurm_error("bivouac: couldn't register --%s: %s", options[i].name, spank_strerror(err));
			return -1;
		}
	}
	return 0;
}

/* The names under which Slurm keeps a job's plugin options in the environment: what sbatch found, and what the job's own sbatch and srun find. */
void options_forget_inherited(void)
{
	static const char *const prefixes[] = {
		"_SLURM_SPANK_OPTION_bivouac_",
		"SLURM_SPANK__SLURM_SPANK_OPTION_bivouac_",
		"SPANK__SLURM_SPANK_OPTION_bivouac_",
	};
	size_t i = 0;

	while (environ != NULL && environ[i] != NULL) {
		char name[256];
		bool ours = false;

		for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
			ours = ours || strncmp(environ[i], prefixes[p], strlen(prefixes[p])) == 0;
		snprintf(name, sizeof name, "%.*s", (int)strcspn(environ[i], "="), environ[i]);
		if (!ours || unsetenv(name) < 0 || strlen(name) == sizeof name - 1)
			i++; /* unsetenv moved the rest down otherwise */
	}
}
