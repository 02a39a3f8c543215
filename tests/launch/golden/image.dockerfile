# Written by `phalanx image`, which replaces it. To keep changes, remove this line.
FROM python:3.11-slim-bookworm
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=phalanx HOME=/home/phalanx
RUN install -d -o 1000 -g 1000 /app /home/phalanx
COPY ["requirements.lock", "/requirements.lock"]
RUN ["pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--constraint=/requirements.lock", "phalanx[cpu]==0.1.0", "pandas>=3"]
RUN ["pip", "check", "--disable-pip-version-check"]
WORKDIR /app
COPY ["train.py", "train.py"]
COPY ["my models", "my models"]
USER 1000:1000
CMD ["python", "train.py"]
