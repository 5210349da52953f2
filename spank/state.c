/* The node-local state file <run>/<jobid>/state: one line, `starting`, `ready MOUNTPOINT` or `failed REASON`. */
#include "bivouac.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool state_exists(const char *job)
{
	char path[PATH_MAX];

	if (job[0] == '\0' || job[strspn(job, "0123456789")] != '\0')
		return false;
	return (size_t)snprintf(path, sizeof path, "%s/%s", settings.run, job) < sizeof path && access(path, F_OK) == 0;
}

static enum pitch parse(const char *line, char *detail, size_t size)
{
	if (strncmp(line, "ready /", 7) == 0) {
		snprintf(detail, size, "%s", line + 6);
		return PITCH_READY;
	}
	if (strncmp(line, "failed ", 7) == 0) {
		snprintf(detail, size, "%s", line + 7);
		return PITCH_FAILED;
	}
	if (strcmp(line, "starting") == 0) {
		snprintf(detail, size, "the prolog did not finish");
		return PITCH_STARTING;
	}
	snprintf(detail, size, "the state file says \"%.64s\"", line);
	return PITCH_FAILED;
}

enum pitch state_read(uint32_t job, char *detail, size_t size)
{
	char path[PATH_MAX], line[MESSAGE_MAX];
	FILE *f;

	if ((size_t)snprintf(path, sizeof path, "%s/%u/state", settings.run, job) >= sizeof path) {
		snprintf(detail, size, "the path of the state file is too long");
		return PITCH_FAILED;
	}
	f = fopen(path, "re");
	if (f == NULL) {
		snprintf(detail, size, "%s: %s", path, strerror(errno));
		return errno == ENOENT ? PITCH_NONE : PITCH_FAILED;
	}
	if (fgets(line, sizeof line, f) == NULL)
		line[0] = '\0';
	fclose(f);
	line[strcspn(line, "\n")] = '\0';
	return parse(line, detail, size);
}
